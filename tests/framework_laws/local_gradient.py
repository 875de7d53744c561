"""Clipping and weight decay before error feedback: the law holds for the changed gradient."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from hvd_sparse.compression import Dense, Feedback, Layers, TopK
from tests.frameworks import SHAPES, with_bad_entry

SMALL = {"density": 0.1, "layers": Layers(min_numel=64)}
COMPRESSIONS = {"topk": TopK(**SMALL), "dense": Dense(values="bfloat16")}


@pytest.mark.parametrize("name", COMPRESSIONS)
@pytest.mark.parametrize(("norm", "factor"), [(64.0, 0.25), (16.0, 1.0), (8.0, 1.0)])
def test_the_law_counts_the_clipped_gradient(framework, name, norm, factor):
    shapes = {"first": (40, 30), "second": (25, 20)}
    limit = 16 * math.sqrt(framework.size)  # of the result: 16 per rank
    model = framework.model(
        replace(COMPRESSIONS[name], feedback=replace(COMPRESSIONS[name].feedback, clip_norm=limit)),
        shapes,
    )
    for step in range(4):
        gradients = framework.signs(step, shapes, norm=norm)
        before = model.residuals()
        results = model.step(gradients)
        clipped = {name: factor * one for name, one in gradients.items()}
        framework.assert_nothing_is_lost(clipped, results, before, model.residuals())
        framework.assert_same_on_all_ranks(results)
    framework.assert_same_on_all_ranks(model.weights())


@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_orthogonal_gradients_give_a_result_of_the_norm_asked_for(framework, op):
    shapes = {"matrix": (64, 64), "vector": (64,)}
    model = framework.model(
        TopK(density=1.0, layers=Layers(min_numel=64), feedback=Feedback(clip_norm=2.0)),
        shapes,
        op=op,
    )
    own = {name: np.zeros(shape) for name, shape in shapes.items()}
    for one in own.values():
        one[framework.rank] = 100.0
    for result in model.step(own).values():
        assert np.linalg.norm(result) == pytest.approx(2.0)


@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_the_result_has_weight_decay_times_the_weights(framework, op):
    model = framework.model(
        TopK(density=1.0, layers=Layers(min_numel=64), feedback=Feedback(weight_decay=0.25)), op=op
    )
    model.fill(8.0)
    gradients = framework.integer_gradients(0)
    summed = framework.totals(gradients)
    for name, result in model.step(gradients).items():
        mean = summed[name] / (1 if op == "Sum" else framework.size)
        np.testing.assert_allclose(result.ravel(), mean + 2.0, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_weight_decay_that_is_not_sent_yet_is_in_the_residuals(framework, name):
    model = framework.model(
        replace(
            COMPRESSIONS[name],
            feedback=replace(COMPRESSIONS[name].feedback, weight_decay=0.5 * framework.size),
        )
    )
    model.fill(4.0)
    gradients = framework.integer_gradients(0)
    before = model.residuals()
    results = model.step(gradients)
    decayed = {name: one + 2.0 for name, one in gradients.items()}
    framework.assert_nothing_is_lost(decayed, results, before, model.residuals())


@pytest.mark.parametrize("whole", [TopK(density=1.0), Dense()], ids=["topk", "dense"])
def test_a_missing_gradient_decays_too(framework, whole):
    feedback = replace(whole.feedback, weight_decay=0.5)
    model = framework.model(replace(whole, layers=Layers(min_numel=64), feedback=feedback))
    model.fill(4.0)
    gradients = framework.integer_gradients(0)
    del gradients["last"]
    results = model.step(gradients)
    np.testing.assert_allclose(results["last"], np.full(SHAPES["last"], 2.0), rtol=1e-6)
    np.testing.assert_allclose(model.weights()["last"], np.full(SHAPES["last"], 2.0), rtol=1e-6)


def test_what_is_not_finite_does_not_spoil_the_rest_of_a_clipped_gradient(framework):
    shapes = {"matrix": (40, 30)}
    limit = 16 * math.sqrt(framework.size)
    model = framework.model(TopK(feedback=Feedback(clip_norm=limit), **SMALL), shapes)
    gradients = bad = framework.signs(0, shapes, norm=64.0)
    if framework.rank == 0:
        zero = int(np.flatnonzero(bad["matrix"] == 0)[0])
        bad = with_bad_entry(gradients, "matrix", np.inf, index=zero)
    if framework.size == 1:  # nothing is exchanged, so nothing is inspected
        assert not np.isfinite(model.step(bad)["matrix"]).all()
        return
    with pytest.raises(framework.refusal, match=r"NaN or Inf"):
        model.step(bad)
    assert not np.any(model.weights()["matrix"])
    (residual,) = model.residuals().values()
    assert np.array_equal(residual, 0.25 * gradients["matrix"].ravel())
