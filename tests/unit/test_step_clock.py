"""Steps are timed without the exchange's work during the backward pass."""

from __future__ import annotations

import math

import pytest

from hvd_sparse.compression.buckets import Layer
from hvd_sparse.places import step_clock
from hvd_sparse.places.step_clock import StepClock


@pytest.fixture
def clock(monkeypatch):
    """Returns a clock whose time a test sets: (clock, set)."""
    now = [0.0]
    monkeypatch.setattr(step_clock.time, "perf_counter", lambda: now[0])

    def at(seconds):
        now[0] = seconds

    return StepClock([Layer("a", 1), Layer("b", 1)]), at


def test_the_first_step_has_no_begin(clock):
    timed, _ = clock
    assert timed.end_step() is None
    assert timed.end_step() is not None


def test_hooks_are_left_out(clock):
    timed, at = clock
    at(10.0)
    timed.end_step()
    at(12.0)
    with timed.arrival("other"):
        at(12.5)
    at(13.0)
    with timed.arrival("b"):
        at(15.0)
    at(16.0)
    with timed.arrival("a"):
        at(16.25)
    at(20.0)
    times = timed.end_step()()
    assert times.step == 10.0
    assert times.forward == 2.0
    assert times.ready == (1.5, 0.5)


def test_waits_of_the_forward_pass_are_left_out(clock):
    timed, at = clock
    at(10.0)
    timed.end_step()
    for begin, end in ((11.0, 11.5), (12.0, 14.0)):
        at(begin)
        with timed.waiting():
            at(end)
    at(15.0)
    with timed.arrival("a"):
        pass
    at(20.0)
    times = timed.end_step()()
    assert times.step == 10.0
    assert times.forward == 2.5
    timed.running = False
    with timed.waiting():
        at(30.0)
    timed.running = True
    assert timed.end_step()().forward == 10.0  # that wait was not timed


def test_a_layer_without_gradient_is_not_a_number(clock):
    timed, _ = clock
    timed.end_step()
    with timed.arrival("b"):
        pass
    a, b = timed.end_step()().ready
    assert math.isnan(a)
    assert b == 0.0


def test_a_step_without_gradients_is_all_forward(clock):
    timed, at = clock
    timed.end_step()
    at(3.0)
    times = timed.end_step()()
    assert times.forward == times.step == 3.0
    assert all(math.isnan(seconds) for seconds in times.ready)


def test_steps_that_nobody_times_leave_only_their_end(clock):
    timed, at = clock
    timed.running = False
    at(1.0)
    with timed.arrival("a"):
        at(2.0)
    assert timed.end_step() is None
    timed.running = True
    at(5.0)
    with timed.arrival("b"):
        at(6.0)
    at(7.0)
    times = timed.end_step()()
    assert times.step == 5.0  # from the end of the previous step
    assert times.forward == 3.0
    assert math.isnan(times.ready[0])


def test_a_reading_may_be_asked_when_later_steps_are_over_and_more_than_once(clock):
    timed, at = clock
    timed.end_step()
    readings = []
    for step in range(1, 4):
        with timed.arrival("a"):
            at(10.0 * step)
        readings.append(timed.end_step())
    assert [read().step for read in reversed(readings)] == [10.0] * 3
    assert readings[0]() == readings[0]()
