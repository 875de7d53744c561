"""Measures the times of a step on this rank."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from hvd_sparse.compression.buckets import Layer


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Times of one step, in seconds.

    Attributes:
        step: The whole step, from the end of one exchange to the end of the next: with forward,
            backward, waiting, the optimizer and the loading of data.
        forward: From the end of the previous exchange to the first gradient, without the waits for
            the exchange in between.
        ready: From the first gradient of any layer until each layer's gradient became ready, in the
            order of the layers. NaN if none arrived.
    """

    step: float
    forward: float
    ready: tuple[float, ...]


# Returns the times of a step that has ended; waits for a device that is behind.
Reading: TypeAlias = Callable[[], StepTimes]


class Clock(Protocol):
    """The clock of the CPU or device that computes gradients. A mark is a point in its work."""

    def mark(self) -> Any:
        """Returns a mark after all work queued so far; does not wait for it."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Returns the seconds between two marks; waits until both have passed."""

    def release(self, marks: Iterable[Any]) -> None:
        """Takes back marks that are no longer needed."""


class CpuClock:
    """The clock of the CPU, which has done all earlier work when it makes a mark."""

    def mark(self) -> float:
        """Returns seconds since some point in time."""
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        """Returns the difference of two marks."""
        return end - begin

    def release(self, marks: Iterable[float]) -> None:
        """Does nothing: the marks are numbers."""


class _Arrival(NamedTuple):
    """The arrival of a gradient: its layer's index, if any, and marks around the exchange."""

    place: int | None
    before: Any
    after: Any


class StepClock:
    """Times steps. The exchange's own work during backward is left out of `ready`.

    The core times the steps of a graph by itself (csrc/exchange/step_times.h), whose ops run beside
    the exchange. In PyTorch the thread that computes gradients also does the exchange's work, part
    of it in Python and in the host, which the core does not see.

    Args:
        layers: The layers whose gradients are timed.
        clock: The clock of their device.

    Attributes:
        running: True if steps are timed; else only the end of each step is marked.
    """

    def __init__(self, layers: Sequence[Layer], clock: Clock | None = None) -> None:
        self.running = True
        self._clock: Clock = CpuClock() if clock is None else clock
        self._place = {layer.name: place for place, layer in enumerate(layers)}
        self._begin: Any = None
        self._arrivals: list[_Arrival] = []
        self._waits: list[tuple[Any, Any]] = []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Records a wait of the forward pass for the exchange, within the context."""
        if not self.running:
            yield
            return
        before = self._clock.mark()
        yield
        self._waits.append((before, self._clock.mark()))

    @contextmanager
    def arrival(self, name: str) -> Iterator[None]:
        """Records the arrival of a gradient; the exchange does its work within the context."""
        if not self.running:
            yield
            return
        before = self._clock.mark()
        yield
        self._arrivals.append(_Arrival(self._place.get(name), before, self._clock.mark()))

    def end_step(self) -> Reading | None:
        """Ends a step and begins the next; returns None if the step's beginning is unknown."""
        reading = None
        if self.running and self._begin is not None:
            reading = _Reading(
                self._clock,
                len(self._place),
                self._begin,
                self._waits,
                self._arrivals,
                self._clock.mark(),
            )
        elif self._begin is not None:
            self._clock.release([self._begin])
        self._waits, self._arrivals = [], []
        self._begin = self._clock.mark()
        return reading


class _Reading:
    """The marks of a step that has ended; it owns them."""

    def __init__(
        self,
        clock: Clock,
        layers: int,
        begin: Any,
        waits: Sequence[tuple[Any, Any]],
        arrivals: Sequence[_Arrival],
        end: Any,
    ) -> None:
        self._clock = clock
        self._layers = layers
        self._begin, self._waits, self._arrivals, self._end = begin, waits, arrivals, end
        self._times: StepTimes | None = None

    def __call__(self) -> StepTimes:
        if self._times is None:
            self._times = self._read()
            marks = [self._begin, *itertools.chain(*self._waits), self._end]
            for arrival in self._arrivals:
                marks += [arrival.before, arrival.after]
            self._clock.release(marks)
        return self._times

    def _read(self) -> StepTimes:
        seconds = self._clock.seconds
        first = self._arrivals[0].before if self._arrivals else self._end
        ready, ours = [float("nan")] * self._layers, 0.0
        for arrival in self._arrivals:
            if arrival.place is not None:
                ready[arrival.place] = seconds(first, arrival.before) - ours
            ours += seconds(arrival.before, arrival.after)
        waited = sum(seconds(begin, end) for begin, end in self._waits)
        return StepTimes(
            step=seconds(self._begin, self._end),
            forward=max(0.0, seconds(self._begin, first) - waited),
            ready=tuple(ready),
        )
