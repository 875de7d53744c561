"""Tests on each device, without Horovod and frameworks."""

from __future__ import annotations

from tests.on_devices import device, gpu

__all__ = ["device", "gpu"]
