"""Where the gradients of an optimizer lie: on the CPU or on a device, which is chosen here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.places.device_clock import DeviceClock
from hvd_sparse.places.place import BesideCpu, OnCpu, Place
from hvd_sparse.places.step_clock import Clock
from hvd_sparse.torch.devices import current_stream
from hvd_sparse.torch.slots import buffer_of


class OnDevice(BesideCpu):
    """The memory of a device of torch.

    Args:
        device: Of torch.
        clock: Of its streams.
    """

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self.device = str(device)
        self.clock = clock
        self._device = device

    def put(self, values: NDArray[np.float32]) -> torch.Tensor:
        """A tensor there."""
        return torch.from_numpy(values).to(self._device, copy=True)

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        """On the current stream."""
        into.copy_(source)

    def buffer(self, memory: torch.Tensor) -> Buffer:
        """Of the tensor."""
        return buffer_of(memory)

    def stream(self) -> int:
        """Torch's current one."""
        return current_stream(self._device)


def place_of(device: torch.device, exchange: Exchange) -> Place:
    """The place of gradients on a device that `check_device` lets pass.

    Args:
        device: Of all gradients.
        exchange: Whose end ends every wait for the device.
    """
    if device.type == "cpu":
        return OnCpu()
    return OnDevice(device, _cuda_clock(device, exchange.check))


def _cuda_clock(device: torch.device, check: Callable[[], None]) -> DeviceClock:
    return DeviceClock(
        event=lambda: torch.cuda.Event(enable_timing=True),  # type: ignore[no-untyped-call]
        stream=lambda: torch.cuda.current_stream(device),
        check=check,
    )
