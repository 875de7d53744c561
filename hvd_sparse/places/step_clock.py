"""When things happen in a step, as this rank sees them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from hvd_sparse.buckets import Layer


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """One step; all in seconds.

    Attributes:
        step: The whole step, from the end of one exchange to the end of the next: with forward,
            backward, waiting, the optimizer and the loading of data.
        forward: From the end of the exchange before to the first gradient.
        ready: When each layer's gradient became ready, counted from the first gradient of any
            layer; in the order of the layers. NaN where none came.
    """

    step: float
    forward: float
    ready: tuple[float, ...]


# Tells the times of a step that has ended; where a device is behind, it waits for that.
Reading: TypeAlias = Callable[[], StepTimes]


class Clock(Protocol):
    """The time of whoever computes gradients. A mark is a point in what it has been given to do."""

    def mark(self) -> Any:
        """Now, behind all that was given so far; does not wait for it."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two marks; waits until both have passed."""

    def release(self, marks: Iterable[Any]) -> None:
        """Takes marks back, which nobody asks for any more."""


class CpuClock:
    """The CPU has done what it was given when it comes to a mark."""

    def mark(self) -> float:
        """Seconds, since some point in time."""
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        """Their difference."""
        return end - begin

    def release(self, marks: Iterable[float]) -> None:
        """Nothing is kept."""


class _Arrival(NamedTuple):
    """A gradient's: place among the layers, if it is of one, and what the exchange did for it."""

    place: int | None
    before: Any
    after: Any


class StepClock:
    """Times steps. What the exchange itself does in backward's way is left out of `ready`.

    Args:
        layers: Whose gradients are timed.
        clock: Of the device that they lie on.

    Attributes:
        running: Whether steps are timed; else only where they end is marked.
    """

    def __init__(self, layers: Sequence[Layer], clock: Clock | None = None) -> None:
        self.running = True
        self._clock: Clock = CpuClock() if clock is None else clock
        self._place = {layer.name: place for place, layer in enumerate(layers)}
        self._begin: Any = None
        self._arrivals: list[_Arrival] = []

    @contextmanager
    def arrival(self, name: str) -> Iterator[None]:
        """A gradient has arrived; within it the exchange does its part."""
        if not self.running:
            yield
            return
        before = self._clock.mark()
        yield
        self._arrivals.append(_Arrival(self._place.get(name), before, self._clock.mark()))

    def end_step(self) -> Reading | None:
        """Ends a step and begins the next; None for the first, whose begin is not known."""
        reading = None
        if self.running and self._begin is not None:
            reading = _Reading(
                self._clock, len(self._place), self._begin, self._arrivals, self._clock.mark()
            )
        elif self._begin is not None:
            self._clock.release([self._begin])
        self._arrivals = []
        self._begin = self._clock.mark()
        return reading


class _Reading:
    """The marks of a step that has ended, which are its own."""

    def __init__(
        self, clock: Clock, layers: int, begin: Any, arrivals: Sequence[_Arrival], end: Any
    ) -> None:
        self._clock = clock
        self._layers = layers
        self._begin, self._arrivals, self._end = begin, arrivals, end
        self._times: StepTimes | None = None

    def __call__(self) -> StepTimes:
        if self._times is None:
            self._times = self._read()
            marks = [self._begin, self._end]
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
        return StepTimes(
            step=seconds(self._begin, self._end),
            forward=seconds(self._begin, first),
            ready=tuple(ready),
        )
