"""When things happen in a step, as this rank sees them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

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


class StepClock:
    """Times steps. What the exchange itself does in backward's way is left out of `ready`.

    Args:
        layers: Whose gradients are timed.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._place = {layer.name: place for place, layer in enumerate(layers)}
        self._begin: float | None = None
        self._first: float | None = None
        self._ours = 0.0
        self._ready = self._nothing()

    @contextmanager
    def arrival(self, name: str) -> Iterator[None]:
        """A gradient has arrived; within it the exchange does its part."""
        now = time.perf_counter()
        if self._first is None:
            self._first = now
        place = self._place.get(name)
        if place is not None:
            self._ready[place] = now - self._first - self._ours
        yield
        self._ours += time.perf_counter() - now

    def end_step(self) -> StepTimes | None:
        """Ends a step and begins the next; None for the first, whose begin is not known."""
        now = time.perf_counter()
        times = None
        if self._begin is not None:
            first = now if self._first is None else self._first
            times = StepTimes(
                step=now - self._begin, forward=first - self._begin, ready=tuple(self._ready)
            )
        self._begin, self._first, self._ours = now, None, 0.0
        self._ready = self._nothing()
        return times

    def _nothing(self) -> list[float]:
        return [float("nan")] * len(self._place)
