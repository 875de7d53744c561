"""Momentum correction: the law holds with velocities; dense layers use momentum SGD."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hvd_sparse.compression import LAGS, Dense, Feedback, GTopK, Layers, TopK, Warmup, Wire
from tests.dense_sums import DENSE_SUMS
from tests.frameworks import SHAPES, any_entry, with_bad_entry
from tests.verdict import CYCLE, DENSE_STEPS

M = 0.5  # with integers, sums are exact for some steps
OPTIONS = {"density": 0.1, "layers": Layers(min_numel=64), "feedback": Feedback(momentum=M)}
LAYERS, FEEDBACK = Layers(min_numel=64, bucket_numel=1500), Feedback(momentum=M, rescale=False)


def with_momentum(compression):
    """Returns a compression whose momentum is M."""
    return replace(compression, feedback=replace(compression.feedback, momentum=M))


COMPRESSIONS = {
    "lags": LAGS(
        density=0.1,
        adaptive=False,
        collective="gtopk",
        warmup=None,
        layers=LAYERS,
        feedback=FEEDBACK,
    ),
    "gtopk": GTopK(**OPTIONS),
    "topk": TopK(**OPTIONS),
    "owners": TopK(
        collective="shard_topk", wire=Wire(indices="packed"), **(OPTIONS | {"density": 0.01})
    ),
    "warm-up": TopK(warmup=Warmup(steps=2, densities=(0.5, 0.25)), **OPTIONS),
    **{f"dense, {name}": with_momentum(one) for name, one in DENSE_SUMS.items()},
}


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_nothing_is_lost_with_momentum(framework, name):
    model = framework.model(COMPRESSIONS[name])
    for step in range(5):
        framework.checked_step(model, framework.integer_gradients(step), momentum=M)
    assert set(model.velocities()) == set(SHAPES)
    assert all(np.any(part) for part in model.velocities().values())


@pytest.mark.parametrize("op", ["Sum", "Average"])
@pytest.mark.parametrize(
    "compression",
    [TopK(layers=Layers(min_numel=10**6)), Dense(), Dense(layers=Layers(min_numel=64))],
    ids=repr,
)
def test_what_travels_dense_is_momentum_sgd(framework, compression, op):
    model = framework.model(with_momentum(compression), op=op)
    share = 1 if op == "Sum" else framework.size
    moved = dict.fromkeys(SHAPES, 0.0)
    weights = dict.fromkeys(SHAPES, 0.0)
    for step in range(4):
        gradients = framework.integer_gradients(step)
        summed = framework.totals(gradients)
        results = model.step(gradients)
        for name, result in results.items():
            moved[name] = M * moved[name] + summed[name] / share
            weights[name] = weights[name] - moved[name]
            if op == "Sum":
                assert np.array_equal(result.ravel(), moved[name])
            else:
                np.testing.assert_allclose(result.ravel(), moved[name], 1e-5, 1e-6)
    for name, weight in model.weights().items():
        if op == "Sum":
            assert np.array_equal(weight.ravel(), weights[name])
        else:
            np.testing.assert_allclose(weight.ravel(), weights[name], 1e-5, 1e-5)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nothing_is_lost_from_dense_to_sparse_with_momentum(framework, verdict, dtype):
    verdict(sparse=True)
    model = framework.model(
        LAGS(warmup=None, **OPTIONS | {"feedback": Feedback(momentum=M, rescale=False)}),
        dtype=dtype,
    )
    sparse = []
    for step in range(DENSE_STEPS + 3):
        gradients = framework.integer_gradients(step)
        if step < DENSE_STEPS - 2:  # otherwise sums would need more bits than there are
            gradients = {name: np.zeros_like(one) for name, one in gradients.items()}
        framework.checked_step(model, gradients, momentum=M)
        sparse.append(model.sparse_buckets())
        framework.assert_same_on_all_ranks(model.weights())
    assert sparse == [0] * DENSE_STEPS + [1] * 3
    assert CYCLE > DENSE_STEPS + 3


@pytest.mark.parametrize("name", ["topk", "dense, bfloat16"])
@pytest.mark.parametrize("bad", ["second", "last", "bias"])
def test_a_bad_gradient_of_one_rank_leaves_finite_velocities(framework, name, bad):
    model = framework.model(COMPRESSIONS[name])
    model.step(framework.integer_gradients(0))
    before, velocity, weights = model.residuals(), model.velocities(), model.weights()
    gradients = framework.integer_gradients(1)
    if framework.rank == framework.size - 1:
        gradients = with_bad_entry(gradients, bad, np.nan)
    with pytest.raises(framework.refusal, match=r"not finite|NaN or Inf"):
        model.step(gradients)
    assert all(np.array_equal(one, weights[name]) for name, one in model.weights().items())
    after = model.velocities()
    if name == "topk" or framework.size == 1:
        assert np.array_equal(after["bias"], velocity["bias"])  # sent dense: skipped
    for name, part in model.residuals().items() if framework.size > 1 else ():
        grown = M * velocity[name] + np.nan_to_num(gradients[name].ravel())
        assert np.array_equal(part, before[name] + grown)
        assert np.array_equal(after[name], grown)
    results = model.step(framework.integer_gradients(2))
    assert all(np.isfinite(one).all() for one in results.values())
    assert all(np.isfinite(one).all() for one in model.velocities().values())
    framework.assert_same_on_all_ranks(results)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", ["topk", "dense, bfloat16"])
def test_a_sum_that_overflows_once_is_refused_once(framework, name):
    model = framework.model(COMPRESSIONS[name])
    gradients = with_bad_entry(framework.integer_gradients(0), "second", 3e38)
    with pytest.raises(framework.refusal, match=r"overflows .* keep its entries up to"):
        model.step(gradients)
    for part in (model.residuals()["second"], model.velocities()["second"]):
        expected = gradients["second"].ravel()
        assert np.array_equal(part, np.where(expected > 1e38, 0, expected))
    for step in range(1, 3):
        framework.checked_step(model, framework.integer_gradients(step), momentum=M)


def test_a_step_that_a_narrow_gradient_cannot_hold_is_refused(framework):
    shapes = {"bias": (7,)}
    model = framework.model(COMPRESSIONS["topk"], shapes, dtype="float16", op="Average")
    for held in (True, True, False):  # 40000, 60000, 70000
        if held:
            model.step({"bias": np.full(7, 40000.0)})
            continue
        with pytest.raises(framework.refusal, match=framework.dense_refusal("bias")):
            model.step({"bias": np.full(7, 40000.0)})
    assert np.array_equal(model.velocities()["bias"], np.full(7, 60000.0))


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("policy", ["spread", "reset"])
def test_velocities_begin_anew_where_residuals_change_hands(framework, policy, folder):
    model = framework.model(COMPRESSIONS["gtopk"])
    for step in range(3):
        model.step(framework.integer_gradients(step))
    assert any_entry(model.velocities())
    model.save(folder)
    model.load(folder, residuals=policy)
    assert not any_entry(model.velocities())
    framework.checked_step(model, framework.integer_gradients(3), momentum=M)
