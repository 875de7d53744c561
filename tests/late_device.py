"""The CPU as a device of PyTorch whose events are late."""

from __future__ import annotations

import math

import torch

from hvd_sparse.pytorch.places import OnDevice
from tests.device_time import late_clock


class LateDevice(OnDevice):
    """A place of gradients with the memory of the CPU and the clock of a device.

    Args:
        exchange: The exchange whose end ends every wait for the device.
    """

    def __init__(self, exchange):
        super().__init__(torch.device("cpu"), late_clock(exchange))

    def free_bytes(self):
        return math.inf
