"""The times of a step, once the device that computed it has come to its end."""

from __future__ import annotations

from collections.abc import Callable

from hvd_sparse import _core
from hvd_sparse.places.step_clock import Reading, StepTimes
from hvd_sparse.waiting import wait_until


def reading_of(step: _core.StepReading, layers: int, check: Callable[[], None]) -> Reading:
    """Tells the times of a step when it is asked; waits for the device then, and not before.

    Args:
        step: The marks of a step that has ended.
        layers: How many pieces, the first ones, count.
        check: Raises what has ended the exchange.
    """

    def read() -> StepTimes:
        wait_until(lambda: step.passed, check, "the device to pass a mark")
        seconds, forward, ready = step.times()
        return StepTimes(step=seconds, forward=forward, ready=tuple(ready[:layers]))

    return read
