"""Tests on every device, without Horovod: laws between thread ranks, and kernels."""
