"""What holds on every device: laws between ranks that are threads, and kernels; without Horovod."""
