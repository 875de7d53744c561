"""A device whose time a test makes: events that pass when the test, or time itself, says so."""

from __future__ import annotations

import itertools
import time

from hvd_sparse.places.device_clock import DeviceClock


class FakeDevice:
    """Does what it is given in order, later than it is given.

    Attributes:
        given: Seconds at which the device will have done what it was given so far.
        done: Seconds up to which it has come.
        events: All that were made.
        asked: How often it was asked whether an event has passed.
    """

    def __init__(self):
        self.given = 0.0
        self.done = 0.0
        self.events = []
        self.asked = 0
        self.stream = object()

    def work(self, seconds):
        """Gives it something to do."""
        self.given += seconds

    def catch_up(self, seconds=None):
        """Lets it come to an end, or up to a time."""
        self.done = self.given if seconds is None else seconds

    def clock(self, check=lambda: None):
        """Of this device."""
        return DeviceClock(event=self._event, stream=lambda: self.stream, check=check)

    def _event(self):
        self.events.append(FakeEvent(self))
        return self.events[-1]


class FakeEvent:
    """What torch.cuda.Event does, and an error where that would answer nonsense."""

    _numbers = itertools.count()

    def __init__(self, device):
        self._device = device
        self.recorded = None
        self.number = next(self._numbers)

    def record(self, stream):
        assert stream is self._device.stream
        self.recorded = self._device.given

    def query(self):
        assert self.recorded is not None, "asked before it was recorded"
        self._device.asked += 1
        return self.recorded <= self._device.done

    def elapsed_time(self, end_event):
        assert self.query(), "the first event has not passed"
        assert end_event.query(), "the second event has not passed"
        return 1e3 * (end_event.recorded - self.recorded)


class LateEvent:
    """Of a device that comes to whatever it was given some milliseconds later."""

    DELAY = 3e-3

    def __init__(self):
        self._recorded = None

    def record(self, _):
        self._recorded = time.perf_counter()

    def query(self):
        assert self._recorded is not None, "asked before it was recorded"
        return time.perf_counter() >= self._recorded + self.DELAY

    def elapsed_time(self, end_event):
        assert self.query(), "the first event has not passed"
        assert end_event.query(), "the second event has not passed"
        return 1e3 * (end_event._recorded - self._recorded)


def late_clock(exchange):
    """Of such a device."""
    return DeviceClock(event=LateEvent, stream=lambda: None, check=exchange.check)
