"""The number of local steps: options, AdaComm's rule, agreement of the ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_sparse.compression import LAGS, AdaComm, Dense, Feedback, LocalSteps, Outer, TopK, Warmup
from hvd_sparse.errors import InvalidArgumentError, RanksDisagreeError
from hvd_sparse.exchange.interval import Interval


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def reported(interval, *, loss=None, rate=0.1, weights=0):
    """Returns the reports of two ranks that have the same steps, losses and rates."""
    if loss is not None:
        interval.note_loss(loss)
    return [interval.report(rate=rate, weights=weights)] * 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"local_steps": 0}, r"LocalSteps every must lie in \[2, 1048576\], got 0"),
        ({"local_steps": "often"}, "LocalSteps every must be an integer, got 'often'"),
        ({"local_steps": 2.5}, "every must be an integer, got 2.5"),
        ({"local_steps": True}, "every must be an integer"),
        ({"local_steps": 4, "feedback": Feedback(momentum=0.9)}, "momentum acts on gradients"),
        ({"local_steps": 4, "feedback": Feedback(clip_norm=1.0)}, "clip_norm acts on gradients"),
        (
            {"local_steps": 4, "feedback": Feedback(weight_decay=1)},
            "weight_decay acts on gradients",
        ),
        ({"local_steps": 4, "feedback": Feedback(rescale=True)}, "rescale acts on gradients"),
    ],
)
def test_options_outside_their_limits_are_named(options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        TopK(**options)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: AdaComm(first=0), r"AdaComm first must lie in \[1, 1048576\], got 0"),
        (lambda: LocalSteps(every=1), r"LocalSteps every must lie in \[2, "),
        (
            lambda: LocalSteps(every=4, moments="mean"),
            "moments must be one of local, averaged, got",
        ),
        (
            lambda: LocalSteps(every=4, moments="averaged", delay=1),
            "moments must be 'local' with fragments or a delay, .* 1 fragments and a delay of 1",
        ),
        (
            lambda: LocalSteps(every="auto", fragments=2),
            "every must be a number with fragments or a delay, got 'auto'",
        ),
        (lambda: LocalSteps(every=4, fragments=5), r"fragments must lie in \[1, 4\], got 5"),
        (lambda: LocalSteps(every=9, fragments=4, delay=3), r"delay must lie in \[0, 2\], got 3"),
        (lambda: LocalSteps(every=4, lr_scale=0), r"lr_scale must be a number in \(0"),
        (lambda: LocalSteps(every=4, lr_scale="fast"), "lr_scale must be a number"),
        (lambda: LocalSteps(every=4, delay=True), "delay must be an integer, got True"),
        (
            lambda: LAGS(local_steps=LocalSteps(every=4, fragments=2)),
            "adaptive must be False where local steps meet in fragments, .* got 2 fragments",
        ),
        (lambda: LocalSteps(every=4, outer=0.5), "outer must be a Outer, got 0.5"),
        (lambda: AdaComm(first=8, seconds=0), r"AdaComm seconds must be a number in \(0"),
        (lambda: AdaComm(first=8, shrink=1), r"AdaComm shrink must be a number in \(0, 1\)"),
        (lambda: Outer(lr=0), r"Outer lr must be a number in \(0"),
        (lambda: Outer(momentum=1.0), r"Outer momentum must be a number in \[0, 1\)"),
        (lambda: Outer(nesterov=True), "nesterov needs a momentum"),
        (lambda: Outer(momentum=0.5, nesterov=1), "nesterov must be one of True, False, got 1"),
    ],
)
def test_rules_outside_their_limits_are_named(make, text):
    with pytest.raises(InvalidArgumentError, match=text):
        make()


def test_differences_have_neither_momentum_nor_rates_and_a_warm_up_counts_local_steps():
    compression = LAGS(local_steps=16, warmup=Warmup(steps=50, densities=(0.25,)))
    assert compression.is_local
    of_differences = compression.of_differences()
    assert of_differences.feedback == Feedback(momentum="keep", rescale=False)
    assert of_differences.warmup == Warmup(steps=4, densities=(0.25,))
    assert not Dense().is_local
    adaptive = replace(compression, local_steps=AdaComm(first=25))
    assert adaptive.of_differences().warmup.steps == 2
    assert "local_steps=LocalSteps(every=AdaComm(first=25))" in repr(adaptive)


def test_an_interval_ends_after_its_steps_and_begins_anew():
    interval = Interval(LocalSteps(every=3))
    assert [interval.step() for _ in range(3)] == [None, None, 0]
    interval.meet(reported(interval))
    assert (interval.taken, interval.length) == (0, 3)


@pytest.mark.parametrize(
    ("every", "fragments", "meets"),
    [
        (6, 3, [None, 0, None, 1, None, 2]),
        (5, 2, [None, None, 0, None, 1]),
        (4, 4, [0, 1, 2, 3]),
        (7, 3, [None, None, 0, None, 1, None, 2]),
    ],
)
def test_fragments_meet_at_steps_that_are_spread_over_the_interval(every, fragments, meets):
    interval = Interval(LocalSteps(every=every), fragments=fragments)
    for _ in range(2):
        assert [interval.step() for _ in range(every)] == meets
        interval.meet(())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"taken": 2}, "rank 0 has taken 3 local steps since the last meeting, rank 1 2:"),
        ({"weights": 5}, "rank 0 and rank 1 have taken local steps from different weights"),
    ],
)
def test_ranks_that_differ_are_named(changes, text):
    interval = Interval(LocalSteps(every=3))
    for _ in range(3):
        interval.step()
    first, second = reported(interval)
    interval.check([first, second])
    with pytest.raises(RanksDisagreeError, match=text):
        interval.check([first, second._replace(**changes)])


def test_adacomm_follows_the_root_of_the_loss():
    clock = Clock()
    interval = Interval(LocalSteps(every=AdaComm(first=20, seconds=60.0)), clock=clock)
    interval.meet(reported(interval, loss=4.0))
    assert interval.length == 20  # too early
    clock.now += 60
    interval.meet(reported(interval, loss=1.0))  # the mean of 4 and 1 since the beginning
    assert interval.length == 16  # 20 sqrt(2.5 / 4) = 15.8
    clock.now += 30
    interval.meet(reported(interval, loss=0.04))
    assert interval.length == 16
    clock.now += 30
    interval.meet(reported(interval, loss=0.04))
    assert interval.length == 2  # 20 sqrt(.04 / 4)


def test_adacomm_halves_where_the_loss_does_not_fall():
    clock = Clock()
    interval = Interval(LocalSteps(every=AdaComm(first=9, seconds=1.0)), clock=clock)
    lengths = []
    for _ in range(6):
        clock.now += 1
        interval.meet(reported(interval, loss=3.0))
        lengths.append(interval.length)
    assert lengths == [5, 3, 2, 1, 1, 1]


def test_adacomm_meets_less_often_at_a_smaller_learning_rate():
    clock = Clock()
    interval = Interval(LocalSteps(every=AdaComm(first=16, seconds=1.0)), clock=clock)
    clock.now += 1
    interval.meet(reported(interval, loss=4.0, rate=0.1))
    assert interval.length == 8  # 16 is no decrease
    clock.now += 1
    interval.meet(reported(interval, loss=0.1, rate=0.05))
    assert interval.length == 4  # 16 sqrt(.1 / 4 * 2) = 3.6


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_adacomm_leaves_out_losses_that_are_not_finite(loss, at, caplog):
    clock = Clock()
    interval = Interval(LocalSteps(every=AdaComm(first=16, seconds=1.0)), clock=clock)
    losses = [4.0, 0.25]
    lengths = []
    for one in [*losses[:at], loss, *losses[at:]]:
        clock.now += 1
        interval.meet(reported(interval, loss=one))
        lengths.append(interval.length)
    lengths.pop(at)
    assert lengths == [8, 4]  # 16 is no decrease, and 16 sqrt(.25 / 4)
    assert len(caplog.records) == 1


def test_adacomm_takes_the_first_loss_above_0_as_the_first():
    clock = Clock()
    interval = Interval(LocalSteps(every=AdaComm(first=16, seconds=1.0)), clock=clock)
    lengths = []
    for loss in (0.0, -1.0, 4.0, 0.25, -1.0):
        clock.now += 1
        interval.meet(reported(interval, loss=loss))
        lengths.append(interval.length)
    assert lengths == [16, 16, 8, 4, 4]


def test_a_first_loss_that_is_no_measure_is_not_loaded():
    interval = Interval(LocalSteps(every=AdaComm(first=16)))
    interval.load({**interval.state(), "first": (float("nan"), 0.1)})
    assert interval.state()["first"] is None


def meeting(interval, clock, *, step, seconds):
    """Takes an interval of steps of a length, and a meeting; returns how many steps come next."""
    while interval.step() is None:
        clock.now += step
    clock.now += step
    reports = reported(interval)
    clock.now += seconds
    interval.meet(reports)
    return interval.length


def test_auto_takes_the_fewest_steps_with_which_meetings_take_a_tenth_of_the_time():
    clock = Clock()
    interval = Interval(LocalSteps(every="auto"), clock=clock)
    assert meeting(interval, clock, step=1.0, seconds=1.5) == 4  # no meeting was timed before it
    lengths = [meeting(interval, clock, step=1.0, seconds=1.5) for _ in range(4)]
    assert lengths == [8, 14, 14, 14]  # 9 x 1.5 = 13.5, and twice as many at most
    lengths = [meeting(interval, clock, step=1.0, seconds=100.0) for _ in range(4)]
    assert lengths == [14, 28, 32, 32]
    lengths = [meeting(interval, clock, step=1.0, seconds=0.001) for _ in range(8)]
    assert lengths == [32, 16, 8, 4, 2, 1, 1, 1]


def test_auto_leaves_out_that_ranks_wait_for_the_last():
    clock = Clock()
    interval = Interval(LocalSteps(every="auto"), clock=clock)
    meeting(interval, clock, step=1.0, seconds=1.0)
    first, second = reported(interval)
    interval.meet([first._replace(meeting=50.0), second._replace(meeting=0.5, step=1.0)])
    assert interval.length == 5


def test_adacomm_goes_on_where_it_was_saved():
    clock = Clock()
    rule = AdaComm(first=20, seconds=60.0)
    interval = Interval(LocalSteps(every=rule), clock=clock)
    interval.meet(reported(interval, loss=4.0))
    interval.step()
    clock.now += 50
    other = Interval(LocalSteps(every=rule), clock=Clock())
    other.load(interval.state())
    assert other.state() == interval.state()
    assert other.taken == 1
