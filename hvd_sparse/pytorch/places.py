"""Chooses the place of an optimizer's gradients, the CPU or a device, and implements the latter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places import place
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.places.device_clock import DeviceClock
from hvd_sparse.places.step_clock import Clock
from hvd_sparse.pytorch.devices import current_stream
from hvd_sparse.pytorch.host import Link
from hvd_sparse.pytorch.slots import buffer_of
from hvd_sparse.tuning.measurer import Measurer


class OnDevice(place.OnDevice):
    """A device of torch.

    Args:
        device: The torch device.
        clock: Clock of its streams.
    """

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self.device = str(device)
        self.clock = clock
        self._device = device

    def put(self, values: NDArray[np.float32]) -> torch.Tensor:
        """Returns a tensor on the device, with these values."""
        return torch.from_numpy(values).to(self._device, copy=True)

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        """Copies on the current stream."""
        into.copy_(source)

    def buffer(self, memory: torch.Tensor) -> Buffer:
        """Returns the memory of a tensor."""
        return buffer_of(memory)

    def free_bytes(self) -> float:
        """Returns what neither torch nor anybody else holds of the device's memory."""
        free, _ = torch.cuda.mem_get_info(self._device)
        return float(free)

    def stream(self) -> int:
        """Returns torch's current stream."""
        return current_stream(self._device)


def measurer_of(link: Link, device: torch.device) -> Measurer:
    """Returns what measures the ranks whose gradients are on a device that `check_device` passed.

    Args:
        link: The connection between the ranks.
        device: Device of all gradients.
    """
    chosen = place_of(device, link.core)

    def allreduce(nbytes: int, values: str) -> float:
        return link.messages.timed_sum(nbytes, values, chosen)

    return Measurer(link.world, link.core, allreduce=allreduce, place=chosen)


def place_of(device: torch.device, exchange: Exchange) -> place.Place:
    """Returns the place of gradients on a device.

    Args:
        device: Device of all gradients.
        exchange: The exchange whose end ends every wait for the device.
    """
    if device.type == "cpu":
        return place.OnCpu()
    return OnDevice(device, _cuda_clock(device, exchange.check))


def _cuda_clock(device: torch.device, check: Callable[[], None]) -> DeviceClock:
    return DeviceClock(
        event=lambda: torch.cuda.Event(enable_timing=True),  # type: ignore[no-untyped-call]
        stream=lambda: torch.cuda.current_stream(device),
        check=check,
    )
