"""A device's steps are timed by its own clock, and read only after the device is done."""

from __future__ import annotations

import math

import pytest

from hvd_sparse import waiting
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.errors import ExchangeFailedError
from hvd_sparse.places.step_clock import StepClock
from tests.device_time import FakeDevice

LAYERS = [Layer("a", 1), Layer("b", 1)]


@pytest.fixture
def device():
    return FakeDevice()


@pytest.fixture
def steps(device):
    """Returns a clock of steps, at the end of the first one."""
    timed = StepClock(LAYERS, device.clock())
    timed.end_step()
    return timed


def step(timed, device, *, forward=4.0, between=2.0, ours=0.5, after=1.0):
    """Runs a step on the device; the CPU runs ahead of it."""
    device.work(forward)
    for name in ("b", "a"):
        with timed.arrival(name):
            device.work(ours)
        device.work(between)
    device.work(after)
    return timed.end_step()


def test_times_are_the_devices_and_leave_out_what_hooks_gave_it(steps, device):
    reading = step(steps, device)
    device.catch_up()
    times = reading()
    assert times.forward == 4.0
    assert times.ready == (2.0, 0.0)
    assert times.step == 10.0


def test_nobody_asks_the_device_anything_before_the_step_is_read(steps, device):
    readings = [step(steps, device) for _ in range(5)]
    assert device.asked == 0
    device.catch_up()
    assert [read().step for read in readings] == [10.0] * 5


def test_readings_are_right_in_any_order(steps, device):
    readings = [step(steps, device, forward=float(n)) for n in range(3)]
    device.catch_up()
    assert [readings[n]().forward for n in (2, 0, 1)] == [2.0, 0.0, 1.0]


def test_reading_waits_for_events_that_have_not_passed(steps, device, monkeypatch):
    reading = step(steps, device)
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        device.catch_up(min(device.given, device.done + 3.0))

    monkeypatch.setattr(waiting.time, "sleep", sleep)
    assert reading().step == 10.0
    assert len(slept) == 4  # at 3 seconds each, until 10 seconds of work were done


def test_who_waits_for_a_device_learns_that_the_exchange_has_ended(device):
    def check():
        raise ExchangeFailedError("rank 1 is gone")

    timed = StepClock(LAYERS, device.clock(check))
    timed.end_step()
    reading = step(timed, device)
    with pytest.raises(ExchangeFailedError, match="rank 1 is gone"):
        reading()


def test_events_are_used_again_once_they_were_read_and_not_before(steps, device):
    first = [step(steps, device) for _ in range(3)]
    made = len(device.events)
    device.catch_up()
    for read in first:
        read()
    second = [step(steps, device, forward=7.0) for _ in range(3)]
    assert len(device.events) == made
    device.catch_up()
    assert [read().forward for read in second] == [7.0] * 3
    assert [read().forward for read in first] == [4.0] * 3  # unchanged since they were read


def test_steps_that_are_never_read_harm_no_others(steps, device):
    step(steps, device)
    reading = step(steps, device, forward=1.0)
    device.catch_up()
    assert reading().forward == 1.0
    assert reading().step == 7.0


def test_steps_that_are_not_timed_take_two_events_in_all(device):
    timed = StepClock(LAYERS, device.clock())
    timed.running = False
    for _ in range(100):
        step(timed, device)
    assert len(device.events) <= 2
    timed.running = True
    reading = step(timed, device)
    device.catch_up()
    assert reading().step == 10.0


def test_a_gradient_that_did_not_come_is_no_number(steps, device):
    device.work(1.0)
    with steps.arrival("b"):
        pass
    reading = steps.end_step()
    device.catch_up()
    assert math.isnan(reading().ready[0])
    assert reading().ready[1] == 0.0
