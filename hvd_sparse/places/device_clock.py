"""The time of a device that computes by itself: events in the order of its stream.

A mark costs the thread that runs backward a microsecond or two, and does not wait. What lies
between two marks is known once the device has passed both, so steps are read when they are over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from hvd_sparse.waiting import wait_until


class Event(Protocol):
    """What of torch.cuda.Event(enable_timing=True) is used; _core.TimedMark has it, too."""

    def record(self, stream: Any) -> None:
        """Marks the end of what the stream has been given so far."""

    def query(self) -> bool:
        """Whether the device has passed it."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds until another one, when both have been passed."""


class DeviceClock:
    """Marks are events of the stream that is current.

    Args:
        event: Makes one.
        stream: The one that is current on the device.
        check: Raises what has ended the exchange, so that nobody waits for a device that waits for
            a rank that is gone.
    """

    def __init__(
        self, *, event: Callable[[], Event], stream: Callable[[], Any], check: Callable[[], None]
    ) -> None:
        self._new_event = event
        self._stream = stream
        self._check = check
        self._free: list[Event] = []

    def mark(self) -> Event:
        """Behind what the current stream has been given so far."""
        event = self._free.pop() if self._free else self._new_event()
        event.record(self._stream())
        return event

    def seconds(self, begin: Event, end: Event) -> float:
        """Between two marks; waits until the device has passed both.

        Raises:
            ExchangeFailedError: The exchange has ended meanwhile, or the device did not come there
                within HVD_SPARSE_TIMEOUT seconds.
        """
        for event in (begin, end):
            wait_until(event.query, self._check, "the device to pass a mark")
        return begin.elapsed_time(end) / 1e3

    def release(self, marks: Iterable[Event]) -> None:
        """Uses these events again."""
        self._free += marks
