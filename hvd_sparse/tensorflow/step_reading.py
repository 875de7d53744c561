"""Reads the times of a step, once the device that computed it has reached its end."""

from __future__ import annotations

from collections.abc import Callable

from hvd_sparse import _core
from hvd_sparse.places.step_clock import Reading, StepTimes
from hvd_sparse.waiting import wait_until


def reading_of(step: _core.StepReading, layers: int, check: Callable[[], None]) -> Reading:
    """Returns a function that returns the times of a step; only its call waits for the device.

    Args:
        step: The marks of a step that has ended.
        layers: Number of ops to report, from the first one on.
        check: A function that raises the error that has ended the exchange.
    """

    def read() -> StepTimes:
        wait_until(lambda: step.passed, check, "the device to pass a mark")
        seconds, forward, ready = step.times()
        return StepTimes(step=seconds, forward=forward, ready=tuple(ready[:layers]))

    return read
