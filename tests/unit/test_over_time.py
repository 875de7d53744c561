"""Plans over time: how often ranks meet, what they send, and when another plan follows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hvd_sparse.compression import LAGS, Dense, Feedback, Layers, LocalSteps, Outer, Wire
from hvd_sparse.compression.buckets import Layer, fragments_of
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.exchange.interval import Report
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.over_time import (
    RESERVE,
    Observed,
    PlannerOverTime,
    PlanOverTime,
    steps_to_a_loss,
)
from hvd_sparse.planning.profile import Machine
from hvd_sparse.tuning.learning_guard import LearningGuard
from hvd_sparse.tuning.over_time import TunerOverTime

LAYERS = [Layer(f"layer {i}", 50_000) for i in range(8)]
AUTO = LAGS(local_steps="auto")
COMPUTE = 0.05  # seconds
SEEN = Observed(compute=COMPUTE, drag=0.0)
MACHINE = Machine(
    select_seconds_per_entry=1e-9,
    select_overhead=1e-5,
    merge_seconds_per_entry=2e-9,
    code_seconds_per_entry=2e-9,
)


def network(mbit, size=4):
    return Network.assumed(size, 1e6 / 8 * mbit, 1e-4)


def planner(mbit, compression=AUTO, size=4):
    return PlannerOverTime(LAYERS, compression, network=network(mbit, size), machine=MACHINE)


def bits(plan):
    """Returns the entries that a rank sends per step."""
    return plan.chosen.density / plan.local_steps.every


def test_faster_networks_reach_a_loss_sooner_and_are_given_more():
    plans = [planner(mbit).best(SEEN) for mbit in (1, 10, 100, 1_000)]
    slowdowns = [plan.slowdown for plan in plans]
    assert slowdowns == sorted(slowdowns, reverse=True)
    assert slowdowns[0] > slowdowns[-1]
    assert all(plan.step_seconds >= COMPUTE for plan in plans)
    assert bits(plans[0]) < bits(plans[1]) < bits(plans[-1])


@pytest.mark.parametrize("mbit", [10, 100])
def test_what_a_plan_exchanges_hides_behind_the_steps_of_its_delay(mbit):
    plan = planner(mbit).best(SEEN)
    assert (1 + RESERVE) * plan.exchange_seconds <= plan.local_steps.delay * COMPUTE
    assert plan.step_seconds == COMPUTE
    waiting = planner(mbit).predicted(
        replace(plan.chosen, local_steps=replace(plan.local_steps, delay=0)), SEEN
    )
    assert waiting.step_seconds > plan.step_seconds
    assert waiting.steps < plan.steps


@pytest.mark.parametrize(("size", "collective"), [(4, "allgather"), (64, "shard_topk")])
def test_many_ranks_meet_by_way_of_the_owners_of_shards(size, collective):
    plan = planner(3, size=size).best(SEEN)
    assert plan.chosen.density < 1
    assert plan.chosen.collective_name == collective
    given = LAGS(collective="allgather", local_steps="auto")
    assert planner(3, given, size=size).best(SEEN).chosen.collective_name == "allgather"


def test_work_without_a_core_of_its_own_makes_steps_longer_and_plans_send_less():
    free, busy = (planner(1e4).best(replace(SEEN, drag=drag)) for drag in (0.0, 4.0))
    assert busy.work_seconds < free.work_seconds
    again = planner(1e4).predicted(free.chosen, replace(SEEN, drag=4.0))
    assert again.step_seconds == pytest.approx(free.step_seconds + 4 * free.work_seconds)
    assert busy.slowdown < again.slowdown


def test_a_plan_keeps_what_the_user_has_set():
    outer = Outer(momentum=0.5, nesterov=True)
    given = LAGS(
        density=0.05,
        collective="recursive_doubling",
        wire=Wire(values="bfloat16", indices="plain"),
        feedback=Feedback(decay=0.95),
        layers=Layers(min_numel=64),
        local_steps=LocalSteps(every="auto", outer=outer, lr_scale=2.0),
    )
    for mbit in (1, 10):
        chosen = planner(mbit, given).best(SEEN).chosen
        assert chosen.density >= 0.05
        assert (chosen.collective, chosen.wire) == (given.collective, given.wire)
        assert (chosen.layers, chosen.feedback) == (given.layers, given.feedback)
        assert (chosen.local_steps.outer, chosen.local_steps.lr_scale) == (outer, 2.0)
        assert chosen.warmup is None
        assert not chosen.adaptive


def test_all_entries_are_sent_by_a_dense_sum():
    plan = planner(1e6).best(SEEN)
    assert isinstance(plan.chosen, Dense)
    choices = plan.choices(LAYERS)
    assert {choice.collective for choice in choices} == {"shard_sum"}
    assert [name for choice in choices for name in choice.layers] == [one.name for one in LAYERS]


def test_no_bucket_has_layers_of_two_fragments():
    plan = planner(10).best(SEEN)
    fragment_of = {
        layer.name: number
        for number, group in enumerate(fragments_of(LAYERS, plan.local_steps.fragments))
        for layer in group
    }
    for choice in plan.choices(LAYERS):
        assert len({fragment_of[name] for name in choice.layers}) == 1


def test_meeting_rarely_sending_little_and_coming_late_cost_steps():
    some = steps_to_a_loss(8, 0.1, 1)
    assert 1 < some < steps_to_a_loss(16, 0.1, 1)
    assert some < steps_to_a_loss(8, 0.03, 1)
    assert some < steps_to_a_loss(8, 0.1, 2)


def test_a_plan_comes_back_from_its_text():
    plan = planner(10).best(SEEN)
    assert PlanOverTime.from_json(plan.to_json()) == plan
    unknown = json.loads(plan.to_json()) | {"compression": {"part": "os.system"}}
    with pytest.raises(InvalidArgumentError, match=r"os\.system"):
        PlanOverTime.from_json(json.dumps(unknown))


def tuner(mbit=10, rank=1):
    return TunerOverTime(LAYERS, AUTO, network=network(mbit), machine=MACHINE, rank=rank)


def report(
    *, step=COMPUTE, waited=0.0, meeting=0.0, loss=None, rate=0.1, moved=0.0, grows=0, taken=8
):
    losses = 0 if loss is None else taken
    return Report(
        taken, 0, 1.0, losses, losses * (loss or 0.0), rate, step, waited, meeting, 0, moved, grows
    )


def end_interval(one, **numbers):
    meeting = numbers.pop("meeting", one.tuning.over_time.exchange_seconds)
    return one.end_interval([report(meeting=meeting, **numbers), report(meeting=meeting)])


def test_the_first_plan_is_followed_by_one_from_measured_times(caplog):
    caplog.set_level("INFO", "hvd_sparse")
    first = tuner(rank=0)
    assert first.tuning.over_time.local_steps == LocalSteps(every=8)
    assert [taken for taken in range(9) if first.times_from(taken)] == [2]
    assert end_interval(first, step=0.08)
    assert not first.times_from(2)
    plan = first.tuning.over_time
    assert plan == planner(10).best(Observed(compute=0.08))  # of the slowest rank
    assert first.tuning.choices == plan.choices(LAYERS)
    assert f"ranks meet every {plan.local_steps.every} steps" in caplog.text
    assert repr(plan.local_steps) in caplog.text


def test_plans_are_made_again_after_4_16_and_64_intervals(monkeypatch):
    made = []
    best = PlannerOverTime.best
    monkeypatch.setattr(PlannerOverTime, "best", lambda *a, **k: made.append(a) or best(*a, **k))
    one = tuner()
    counts = []
    for _ in range(65):
        end_interval(one)
        counts.append(len(made))
    assert counts == [1] * 3 + [2] * 12 + [3] * 48 + [4] * 2


def test_a_plan_stays_unless_another_one_is_clearly_better():
    one = tuner()
    end_interval(one)
    before = one.tuning.over_time
    as_predicted = COMPUTE + before.work_seconds
    for step in (as_predicted, as_predicted, 10 * COMPUTE, *[as_predicted] * 4):
        assert not end_interval(one, step=step)
    assert one.tuning.over_time == before
    assert one.plan_state()["intervals"] == 8
    for _ in range(7):
        assert not end_interval(one, step=as_predicted, meeting=50 * before.exchange_seconds)
    assert end_interval(one, step=as_predicted, meeting=50 * before.exchange_seconds)
    assert bits(one.tuning.over_time) < bits(before)


def test_a_plan_whose_meetings_make_all_ranks_wait_is_given_up():
    one = tuner()
    end_interval(one)
    before = one.tuning.over_time
    waiting = {"step": COMPUTE + before.work_seconds, "waited": COMPUTE}
    rows = [report(**waiting, meeting=before.exchange_seconds)] * 2
    assert [one.end_interval(rows) for _ in range(3)] == [False, False, True]
    after = one.tuning.over_time
    again = planner(10).predicted(before.chosen, replace(SEEN, stretch=2.0))
    assert again.step_seconds > after.step_seconds
    assert after.local_steps.delay > before.local_steps.delay or bits(after) < bits(before)


def test_an_exchange_that_waited_for_a_late_rank_changes_nothing():
    one = tuner()
    end_interval(one)
    before = one.tuning.over_time.chosen
    took = one.tuning.over_time.exchange_seconds
    step = COMPUTE + one.tuning.over_time.work_seconds
    rows = [report(step=step, meeting=50 * took), report(meeting=took)]
    assert not any(one.end_interval(rows) for _ in range(7))
    assert one.tuning.over_time.chosen == before


def test_a_tuner_goes_on_where_it_was_saved():
    one, other = tuner(), tuner()
    end_interval(one)
    end_interval(one)
    other.load_plan(one.plan_state())
    assert other.tuning == one.tuning
    assert other.plan_state() == one.plan_state()
    other.load_plan(None)
    assert other.tuning.over_time == tuner().tuning.over_time
    other.restart(network(100))
    assert other.tuning.network == network(100)


@pytest.mark.parametrize("count", [1, 3, 8, 20])
def test_fragments_are_of_about_the_same_size_and_keep_slices_together(count):
    slices = Layer("sliced", 90_000).slices(30_000)
    layers = [Layer("empty", 0), *LAYERS, *slices, Layer("empty, too", 0)]
    fragments = fragments_of(layers, count)
    assert [layer for group in fragments for layer in group] == layers
    assert len(fragments) <= count
    assert sum(any(one in group for one in slices) for group in fragments) == 1
    sizes = [sum(layer.numel for layer in group) for group in fragments]
    assert max(sizes) <= sum(sizes) / count + 90_000
    assert fragments_of([], count) == []


def seen_by_a_guard(reports):
    """Returns the first reason to step back, and the interval after which there is one."""
    guard = LearningGuard()
    for number, one in enumerate(reports):
        reason = guard.end_interval([one, one])
        if reason is not None:
            return reason, number
    return None


NOISE = [0.03 * (-1) ** number for number in range(48)]


def test_a_loss_that_rises_is_seen_and_one_that_falls_or_scatters_is_not():
    falling = [2 - 0.02 * number + noise for number, noise in enumerate(NOISE)]
    assert seen_by_a_guard(report(loss=loss) for loss in falling) is None
    assert seen_by_a_guard(report(loss=2 + noise) for noise in NOISE) is None
    rising = [2 + max(0, number - 16) * 0.01 + noise for number, noise in enumerate(NOISE)]
    reason, number = seen_by_a_guard(report(loss=loss) for loss in rising)
    assert "mean loss has risen from 2 to" in reason
    assert number in (31, 39)


def test_ranks_that_move_far_more_than_the_learning_rate_explains_are_seen():
    rates = [0.1] * 8 + [0.01] * 8  # what was moved follows one interval late
    moves = [1.0] * 9 + [0.1] * 7
    both = list(zip(rates, moves, strict=True))
    assert seen_by_a_guard(report(rate=rate, moved=moved) for rate, moved in both) is None
    both[12] = (0.01, 2.0)
    reason, number = seen_by_a_guard(report(rate=rate, moved=moved) for rate, moved in both)
    assert "20 times as far as usual" in reason
    assert number == 12


def test_a_residual_that_grows_is_seen():
    assert seen_by_a_guard([report(), report(grows=1)]) == (
        "the residual of rank 0 grows without bound",
        1,
    )


def test_the_tuner_steps_back_to_a_more_cautious_plan_and_says_why(caplog):
    one = tuner(rank=0)
    assert one.end_interval([report()] * 2)
    plans = [one.tuning.over_time]
    for _ in range(8):
        one.end_interval([report(grows=1)] * 2)
        plans.append(one.tuning.over_time)
    costs = [
        steps_to_a_loss(plan.local_steps.every, plan.chosen.density, plan.local_steps.delay)
        for plan in plans
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[-1]
    assert costs[-1] == min(costs) == steps_to_a_loss(2, 1.0, 0)  # nothing is more cautious
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert 1 < len(warnings) < 8
    assert all("rank 0 grows without bound; a more cautious" in warning for warning in warnings)


def test_caution_and_what_the_guard_has_seen_come_back_from_a_checkpoint():
    one, other = tuner(), tuner()
    reports = [report(loss=2 + noise, moved=1.0) for noise in NOISE[:20]]
    for each in [report(), report(grows=1), *reports]:
        one.end_interval([each] * 2)
    other.load_plan(one.plan_state())
    assert other.plan_state() == one.plan_state()
    assert other.tuning == one.tuning
    changes = [
        (one.end_interval([each] * 2), other.end_interval([each] * 2))
        for each in [report(loss=3 + noise, moved=1.0) for noise in NOISE]
    ]
    assert (True, True) in changes
    assert all(first == second for first, second in changes)
    assert other.plan_state() == one.plan_state()
