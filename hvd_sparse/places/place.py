"""A place of gradients, the CPU or a device: its memory and its clock."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hvd_sparse.places.buffer import Buffer
from hvd_sparse.places.step_clock import Clock, CpuClock


class Place(ABC):
    """The CPU or a device.

    Attributes:
        device: The core's name of the place: "cpu", or "cuda:0" and the like.
        clock: Clock of the work done there.
        select_on: The thread that selects from gradients there: "caller", which runs backward, or
            "engine", a separate one.
        has_bus: True if blocks are copied between there and the memory of the CPU.
        adds_up_nodes: True if the ranks of a node can add up their residuals there.
    """

    device: str
    clock: Clock
    select_on: ClassVar[str]
    has_bus: ClassVar[bool]
    adds_up_nodes: ClassVar[bool]

    @abstractmethod
    def put(self, values: NDArray[np.float32]) -> Any:
        """Returns new memory there, with these values."""

    @abstractmethod
    def copy(self, into: Any, source: Any) -> None:
        """Copies from one memory there to another, in the order of `stream`."""

    @abstractmethod
    def buffer(self, memory: Any) -> Buffer:
        """Returns the address of memory from `put`."""

    @abstractmethod
    def free_bytes(self) -> float:
        """Returns the bytes there that the core may still allocate; inf if that has no limit."""

    @abstractmethod
    def stream(self) -> int:
        """Returns the current stream there; 0 for the CPU."""


class OnDevice(Place):
    """A device, which computes asynchronously to the thread that runs backward."""

    select_on = "engine"
    has_bus = True
    adds_up_nodes = False


class OnCpu(Place):
    """The CPU."""

    device = "cpu"
    select_on = "caller"
    has_bus = False
    adds_up_nodes = True

    def __init__(self) -> None:
        self.clock = CpuClock()

    def put(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns a copy."""
        return values.copy()

    def copy(self, into: NDArray[np.float32], source: NDArray[np.float32]) -> None:
        """Copies at once."""
        into[:] = source

    def buffer(self, memory: NDArray[np.float32]) -> Buffer:
        """Returns the memory of the array."""
        return Buffer.of(memory)

    def free_bytes(self) -> float:
        """Returns inf: the memory of a CPU is not counted."""
        return math.inf

    def stream(self) -> int:
        """Returns 0: the CPU has no streams."""
        return 0
