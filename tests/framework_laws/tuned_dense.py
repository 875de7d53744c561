"""Adaptive steps that are dense: residuals join them, or gradients are not inspected."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from tests.framework_laws.tuning import COMPRESSION
from tests.frameworks import SHAPES, any_entry, rounded, same, with_bad_entry
from tests.verdict import CYCLE, DENSE_STEPS


def wide_gradients(framework, step):
    """Returns gradients whose sums need more bits than a narrow type has."""
    return framework.integer_gradients(step, low=1, high=1500)


def joined(residual, gradient, dtype, scale):
    """Returns what a rank sends of a narrow gradient plus its residual, and what it keeps."""
    narrow = rounded(gradient.ravel(), dtype).astype(np.float32)
    whole = narrow + residual.astype(np.float32) / np.float32(scale)
    sent = rounded(whole, dtype)
    return sent, (np.float32(scale) * (whole - sent.astype(np.float32))).astype(np.float64)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize(
    ("dtype", "op", "predivide"),
    [("float16", "Sum", 1.0), ("bfloat16", "Sum", 1.0), ("bfloat16", "Average", 2.0)],
)
def test_what_a_narrow_type_rounds_away_of_a_residual_waits_for_sparse_steps(
    framework, verdict, dtype, op, predivide
):
    verdict(sparse=False)
    model = framework.model(COMPRESSION, dtype=dtype, op=op, predivide=predivide)
    scale = 1 / predivide
    steps = itertools.count()

    def dense_step():  # the layers were sparse
        before, gradients = model.residuals(), wide_gradients(framework, next(steps))
        results, after = model.step(gradients), model.residuals()
        for name, residual in before.items():
            sent, kept = joined(residual, gradients[name], dtype, scale)
            assert np.array_equal(after[name], kept), name
            framework.assert_reduced(results[name], sent, dtype, op, predivide)

    def sparse_step():
        before, gradients = model.residuals(), wide_gradients(framework, next(steps))
        results, after = model.step(gradients), model.residuals()
        narrow = rounded(gradients["second"].ravel(), dtype)
        everywhere = framework.totals(
            {"owed": before["second"] + scale * narrow, "kept": after["second"]}
        )
        ranks = framework.size if op == "Average" else 1
        given = scale * ranks * results["second"].ravel() + everywhere["kept"]
        np.testing.assert_allclose(everywhere["owed"], given, rtol=1e-6)

    for _ in range(CYCLE):
        model.step(wide_gradients(framework, next(steps)))
    dense_step()
    rests = model.residuals()
    assert np.any(rests["second"])
    bad = {name: np.full(shape, math.inf) for name, shape in SHAPES.items()}
    results = model.step(bad)  # nothing is added, so gradients are not inspected
    assert all(np.isinf(result).all() for result in results.values())
    assert same(model.residuals(), rests)
    model.replan()
    dense_step()  # takes up what had waited
    for _ in range(DENSE_STEPS - 1):
        model.step(wide_gradients(framework, next(steps)))
    sparse_step()
    assert model.sparse_buckets() == 1


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_replan_gives_what_had_waited_to_gradients_that_can_hold_it(framework, verdict, dtype):
    verdict(sparse=False)
    model = framework.model(COMPRESSION, dtype=dtype)
    for step in range(CYCLE + 1):
        model.step(wide_gradients(framework, step))
    rests = model.residuals()
    assert any_entry(rests)
    model.replan()
    results = model.step({name: np.zeros(shape) for name, shape in SHAPES.items()})
    after, sums = model.residuals(), framework.totals(rests)
    for name, rest in rests.items():
        sent, kept = joined(rest, np.zeros_like(rest), dtype, 1.0)
        assert np.array_equal(after[name], kept), name
        expected = framework.assert_reduced(results[name], sent, dtype, "Sum", 1.0)
        if framework.size == 2:  # the ranks' shares are halves, which the type can hold
            assert np.array_equal(expected, sums[name]), name
            assert not np.any(kept), name


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("sparse", "stop"), [(False, 1), (False, CYCLE), (False, CYCLE + 1), (True, CYCLE + 1)]
)
def test_narrow_gradients_go_on_bit_for_bit_from_a_checkpoint(
    framework, verdict, folder, dtype, sparse, stop
):
    if framework.fuses and framework.size > 2:
        pytest.skip("a new model may sum in another order, and narrow sums then have other bits")
    verdict(sparse=sparse)
    options = {"dtype": dtype, "op": "Average", "predivide": 3.0}  # which a narrow type rounds
    model = framework.model(COMPRESSION, **options)
    for step in range(stop):
        model.step(wide_gradients(framework, step))
    model.save(folder)
    twin = framework.model(COMPRESSION, **options)
    twin.prepare()
    twin.load(folder)
    for step in range(stop, stop + 3):
        gradients = wide_gradients(framework, step)
        assert same(model.step(gradients), twin.step(gradients))
        assert same(model.weights(), twin.weights())
        assert same(model.residuals(), twin.residuals())


@pytest.mark.usefixtures("several_ranks")
def test_a_bad_gradient_in_a_step_that_is_all_dense_is_horovods_affair(framework, verdict):
    verdict(sparse=False)
    model = framework.model(COMPRESSION)
    framework.checked_step(model, framework.integer_gradients(0))  # may add loaded residuals
    gradients = framework.integer_gradients(1)
    if framework.rank == 0:
        gradients = with_bad_entry(gradients, "second", math.nan)
    assert np.isnan(model.step(gradients)["second"]).sum() == 1


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("owed", ["by all", "not by rank 0"])
def test_a_bad_gradient_in_a_step_that_empties_residuals_keeps_them(framework, verdict, owed):
    verdict(sparse=False)
    model = framework.model(COMPRESSION)
    nothing_came = owed == "not by rank 0" and framework.rank == 0
    for step in range(CYCLE):
        gradients = framework.integer_gradients(step)
        if nothing_came:
            gradients = {name: np.zeros_like(one) for name, one in gradients.items()}
        model.step(gradients)
    before = model.residuals()
    assert any_entry(before) != nothing_came
    gradients = framework.integer_gradients(CYCLE)
    if framework.rank == 0:
        gradients = with_bad_entry(gradients, "second", math.nan)
    with pytest.raises(framework.refusal, match=framework.dense_refusal("second")):
        model.step(gradients)
    assert same(model.residuals(), before)
    for step in range(3):
        framework.checked_step(model, framework.integer_gradients(step))
    assert not any_entry(model.residuals())


@pytest.mark.usefixtures("several_ranks")
def test_a_refused_step_that_empties_residuals_still_changes_their_rate(framework, verdict):
    verdict(sparse=False)
    model = framework.model(
        replace(COMPRESSION, feedback=replace(COMPRESSION.feedback, rescale=True))
    )
    for step in range(CYCLE):
        framework.checked_step(model, framework.integer_gradients(step))
    before = model.residuals()
    assert any_entry(before)
    model.set_rate(0.5)
    with pytest.raises(framework.refusal):
        model.step({name: np.full(shape, math.nan) for name, shape in SHAPES.items()})
    assert same(model.residuals(), {name: 2 * part for name, part in before.items()})
    for step in range(3):
        framework.checked_step(model, framework.integer_gradients(step))
