"""Where gradients lie: the memory there, and the time of who computes there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hvd_sparse.places.buffer import Buffer
from hvd_sparse.places.step_clock import Clock, CpuClock


class Place(ABC):
    """The CPU or a device.

    Attributes:
        device: As the core knows it: "cpu", or "cuda:0" and the like.
        clock: Of what computes there.
        select_on: Who selects from gradients that lie there: "caller", the thread that runs
            backward, or "engine", one beside it.
        has_bus: Whether blocks go between there and the memory of the CPU.
        refuses: Collectives that take no gradients from there.
    """

    device: str
    clock: Clock
    select_on: ClassVar[str]
    has_bus: ClassVar[bool]
    refuses: ClassVar[tuple[str, ...]]

    @abstractmethod
    def put(self, values: NDArray[np.float32]) -> Any:
        """New memory there, with these values."""

    @abstractmethod
    def copy(self, into: Any, source: Any) -> None:
        """Between two memories there, in the order of `stream`."""

    @abstractmethod
    def buffer(self, memory: Any) -> Buffer:
        """The address of what `put` gave."""

    @abstractmethod
    def stream(self) -> int:
        """That is given work there now; 0 for the CPU."""


class BesideCpu(Place):
    """The memory of a device that computes by itself, beside the thread that runs backward."""

    select_on = "engine"
    has_bus = True
    refuses = ("hierarchical",)  # adds up residuals on the CPU


class OnCpu(Place):
    """The memory of the CPU."""

    device = "cpu"
    select_on = "caller"
    has_bus = False
    refuses = ()

    def __init__(self) -> None:
        self.clock = CpuClock()

    def put(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """A copy."""
        return values.copy()

    def copy(self, into: NDArray[np.float32], source: NDArray[np.float32]) -> None:
        """At once."""
        into[:] = source

    def buffer(self, memory: NDArray[np.float32]) -> Buffer:
        """Of the array."""
        return Buffer.of(memory)

    def stream(self) -> int:
        """None."""
        return 0
