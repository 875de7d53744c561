"""A clock of an asynchronous device: events in the order of its stream.

A mark costs the thread that runs backward a microsecond or two, and does not wait. The time between
two marks is known once the device has passed both, so steps are read when they are over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from hvd_sparse.waiting import wait_until


class Event(Protocol):
    """The methods of torch.cuda.Event(enable_timing=True), and of _core.TimedMark, in use."""

    def record(self, stream: Any) -> None:
        """Marks the end of the work queued on the stream so far."""

    def query(self) -> bool:
        """Returns true if the device has passed the event."""

    def elapsed_time(self, end_event: Any) -> float:
        """Returns the milliseconds until another event; the device must have passed both."""


class DeviceClock:
    """A clock whose marks are events on the current stream.

    Args:
        event: Creates an event.
        stream: Returns the device's current stream.
        check: Raises the error that has ended the exchange, so that no thread waits for a device
            that waits for a rank that is gone.
    """

    def __init__(
        self, *, event: Callable[[], Event], stream: Callable[[], Any], check: Callable[[], None]
    ) -> None:
        self._new_event = event
        self._stream = stream
        self._check = check
        self._free: list[Event] = []

    def mark(self) -> Event:
        """Records an event after the work queued on the current stream so far."""
        event = self._free.pop() if self._free else self._new_event()
        event.record(self._stream())
        return event

    def seconds(self, begin: Event, end: Event) -> float:
        """Returns the seconds between two marks; waits until the device has passed both.

        Raises:
            ExchangeFailedError: The exchange has ended meanwhile, or the device did not pass both
                within HVD_SPARSE_TIMEOUT_SECONDS seconds.
        """
        for event in (begin, end):
            wait_until(event.query, self._check, "the device to pass a mark")
        return begin.elapsed_time(end) / 1e3

    def release(self, marks: Iterable[Event]) -> None:
        """Takes events back, to use them again."""
        self._free += marks
