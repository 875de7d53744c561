"""A device on a simulated clock: its events pass when the test, or elapsed time, says so."""

from __future__ import annotations

import itertools
import time

from hvd_sparse.places.device_clock import DeviceClock


class FakeDevice:
    """A device that does its work in order, later than the work is given.

    Attributes:
        given: Time in seconds at which all work given so far will be done.
        done: Time in seconds that the device has reached.
        events: All events created.
        asked: Number of times that an event was queried.
    """

    def __init__(self):
        self.given = 0.0
        self.done = 0.0
        self.events = []
        self.asked = 0
        self.stream = object()

    def work(self, seconds):
        """Gives the device work that takes `seconds`."""
        self.given += seconds

    def catch_up(self, seconds=None):
        """Lets the device finish its work, or reach the time `seconds`."""
        self.done = self.given if seconds is None else seconds

    def clock(self, check=lambda: None):
        """Returns a DeviceClock of this device."""
        return DeviceClock(event=self._event, stream=lambda: self.stream, check=check)

    def _event(self):
        self.events.append(FakeEvent(self))
        return self.events[-1]


class FakeEvent:
    """A stand-in for torch.cuda.Event, which raises an error if a result would be meaningless."""

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
    """An event of a device that lags a few milliseconds behind its work."""

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
    """Returns a DeviceClock of a device with late events."""
    return DeviceClock(event=LateEvent, stream=lambda: None, check=exchange.check)
