"""Streaming meetings: fragments of the model meet in turn, while the ranks take further steps."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from hvd_sparse.compression import LAGS, Layers, LocalSteps
from hvd_sparse.errors import ExchangeFailedError
from tests.framework_laws.local_steps import (
    COMPRESSIONS,
    EVERY,
    EXACT,
    FIXED,
    gradients_of,
    interval,
    new,
    streaming,
)
from tests.frameworks import any_entry, same, with_bad_entry
from tests.verdict import CYCLE


def common_of(model):
    """Returns the last common weights."""
    with model.common_weights():
        return model.weights()


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", ["topk", "gtopk", "lags", "dense", "dense, int8"])
@pytest.mark.parametrize(("fragments", "delay"), [(1, 2), (1, 6), (2, 0), (3, 1), (3, 2)])
def test_streaming_meetings_lose_nothing(framework, name, fragments, delay):
    if COMPRESSIONS[name].values != "float32" and framework.size & (framework.size - 1):
        pytest.skip("averages of rounded values are not exact unless the ranks are a power of two")
    model = new(framework, streaming(COMPRESSIONS[name], fragments=fragments, delay=delay))
    common, moved_at, given = model.weights(), [], dict.fromkeys(model.weights(), 0.0)
    for step in range(19):
        own = gradients_of(framework, step)
        model.step(own)
        given = {name: given[name] + own[name] for name in given}
        before, common = common, common_of(model)
        framework.assert_same_on_all_ranks(common)
        moved_at.append({name for name in common if np.any(common[name] != before[name])})
    first = [step for step in range(6 + delay) if moved_at[step]]
    assert first == [6 // fragments * (number + 1) - 1 + delay for number in range(fragments)]
    assert sum(len(moved_at[step]) for step in first) == len(common)
    model.meet()
    framework.assert_same_on_all_ranks(model.weights())
    assert same(model.weights(), common_of(model))
    results = {name: -framework.size * one for name, one in model.weights().items()}
    framework.assert_nothing_is_lost(given, results, {}, model.residuals())


@pytest.mark.usefixtures("several_ranks")
def test_plans_over_time_follow_each_other_and_lose_nothing(framework, plans_over_time):
    wanted = [
        {"every": 3, "fragments": 3, "delay": 1},
        {"every": 6, "fragments": 2, "delay": 2},
        {"every": 2, "delay": 2},
        {"every": 5},
    ]
    plans_over_time(*wanted)
    model = new(framework, LAGS(local_steps="auto", wire="float32", **FIXED))
    given, lengths = dict.fromkeys(model.weights(), 0.0), []
    for step in range(70):
        own = gradients_of(framework, step)
        model.step(own)
        given = {name: given[name] + own[name] for name in given}
        framework.assert_same_on_all_ranks(common_of(model))
        lengths.append(model.local_steps())
    assert list(dict.fromkeys(lengths)) == [8, 3, 6, 2, 5]
    plan = model.tuning().over_time
    assert plan.local_steps == LocalSteps(every=5)
    framework.assert_equal_on_all_ranks([plan.step_seconds])
    model.meet()
    framework.assert_same_on_all_ranks(model.weights())
    results = {name: -framework.size * one for name, one in model.weights().items()}
    framework.assert_nothing_is_lost(given, results, {}, model.residuals())


@pytest.mark.usefixtures("several_ranks")
def test_a_plan_over_time_is_made_from_measured_times(framework):
    model = new(framework, LAGS(local_steps="auto", density=0.05, layers=Layers(min_numel=64)))
    assert model.tuning() is None or model.tuning().over_time.compute_seconds == 1.0
    interval(framework, model, 0, steps=20)
    plan = model.tuning().over_time
    assert 0 < plan.compute_seconds < 1
    assert plan.chosen.density >= 0.05
    assert plan.slowdown >= plan.steps
    before = model.weights()
    model.replan()
    assert model.local_steps() == 8
    framework.assert_same_on_all_ranks(model.weights())
    interval(framework, model, 30, steps=8)
    assert any_entry({name: before[name] - one for name, one in model.weights().items()})


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_rank_keeps_what_it_has_done_while_its_difference_was_in_flight(framework, dtype):
    model = new(framework, streaming(EXACT, every=4, delay=2), dtype=dtype)
    before, average = model.weights(), {}
    for step in range(8):
        given = {name: np.zeros(one.shape) for name, one in before.items()}
        given["first"][:] = framework.rank + 1.0
        model.step(given)
        taken = framework.totals(given)["first"].reshape(before["first"].shape) / framework.size
        average["first"] = 4 * taken
        own = (framework.rank + 1.0) * (step + 1 if step < 5 else step - 3)
        moved = average["first"] if step >= 5 else 0.0
        expected = before["first"] - moved - own
        if dtype == "float32":
            assert np.array_equal(model.weights()["first"], expected.astype(np.float32))
        else:
            np.testing.assert_allclose(model.weights()["first"], expected, atol=0.125)
    model.meet()
    framework.assert_same_on_all_ranks(model.weights())
    np.testing.assert_allclose(
        model.weights()["first"], before["first"] - 2 * average["first"], atol=0.125
    )


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("delay", [0, 1])
def test_a_fragment_may_be_refused(framework, delay):
    model = new(framework, streaming(EXACT, fragments=2, delay=delay))
    interval(framework, model, 0, steps=2)
    last = gradients_of(framework, 9)
    if framework.rank == framework.size - 1:
        last = with_bad_entry(last, "second", float("nan"), index=3)
    with pytest.raises(framework.refusal):
        for step in range(5):
            model.step(last if step == 0 else gradients_of(framework, step))
    assert all(np.isfinite(one).all() for one in model.weights().values())
    framework.assert_same_on_all_ranks(common_of(model))
    model.meet()
    before = model.weights()
    framework.assert_same_on_all_ranks(before)
    difference = interval(framework, model, 20)
    model.meet()
    for name, total in framework.totals(difference).items():
        moved = (before[name] - model.weights()[name]).ravel()
        assert np.array_equal(framework.size * moved, total)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("delay", [0, 2])
def test_a_rank_that_meets_alone_amid_a_stream_is_named(framework, delay):
    model = new(framework, streaming(EXACT, fragments=3, delay=delay))
    interval(framework, model, 10, steps=4)
    last = framework.size - 1
    with pytest.raises(ExchangeFailedError, match=r"local steps since the last meeting, rank"):
        if framework.rank == last:
            model.meet()
        interval(framework, model, 20, steps=8)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", ["lags", "adaptive", "dense"])
def test_a_rank_may_look_at_its_state_alone_while_a_meeting_is_in_flight(framework, verdict, name):
    verdict(sparse=True)
    others = {"adaptive": LAGS(local_steps=EVERY, warmup=None, **FIXED)}
    compression = {**COMPRESSIONS, **others}[name]
    model = new(
        framework,
        replace(
            compression,
            local_steps=replace(compression.local_steps, delay=EVERY),
            feedback=replace(compression.feedback, quality_every=2),
        ),
    )
    for meeting in range(CYCLE + 3):  # with orders of buckets, decisions and measurements
        interval(framework, model, 10 * meeting)
        assert not model.waiting_bytes()
        if framework.rank == meeting % framework.size:
            model.residuals()
            with model.common_weights():
                pass
        framework.barrier()
    model.meet()
    framework.assert_same_on_all_ranks(model.weights())
    assert model.stats().step == CYCLE + 2


@pytest.mark.usefixtures("several_ranks")
def test_a_refused_meeting_is_raised_on_all_ranks_even_if_one_has_looked(framework):
    model = new(framework, streaming(EXACT, every=EVERY, delay=EVERY))
    bad = gradients_of(framework, 0)
    if framework.rank == framework.size - 1:
        bad = with_bad_entry(bad, "second", float("inf"))
    for _ in range(EVERY):
        model.step(bad)
    if framework.rank == 0:
        model.residuals()
    with pytest.raises(framework.refusal):
        model.meet()


@pytest.mark.usefixtures("several_ranks")
def test_a_rank_that_is_late_at_a_meeting_is_named(framework, monkeypatch, capfd):
    monkeypatch.setenv("HVD_SPARSE_STALL_SECONDS", "0.05")
    model = new(framework, EXACT)
    interval(framework, model, 10)  # in the first steps, DDP itself makes ranks wait
    last = framework.size - 1
    if framework.rank == last:
        time.sleep(0.3)
    interval(framework, model, 0)
    told = f"has waited 0.05 s for rank {last} in a meeting of local steps"
    assert (told in capfd.readouterr().err) == (framework.rank != last)
