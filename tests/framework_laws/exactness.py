"""The laws of every exchange: exact sums, bitwise equal replicas, nothing lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hvd_sparse.compression import LAGS, Dense, Feedback, GaussianK, GTopK, Layers, TopK, Warmup
from tests.dense_sums import DENSE_SUMS
from tests.frameworks import DTYPES, SHAPES, any_entry, same, with_bad_entry

PRESETS = [LAGS, GTopK, GaussianK, TopK]
SMALL = {"layers": Layers(min_numel=64, bucket_numel=1500), "adaptive": False}
SELECTING = {"topk": TopK(density=0.1, **SMALL)}
WHOLE = {
    "gaussiank": GaussianK(density=1.0, **SMALL),
    "topk": TopK(density=1.0, **SMALL),
    "dense": Dense(layers=SMALL["layers"]),
}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("density", [0.01, 0.3, 1.0])
def test_nothing_is_lost_over_several_steps(framework, preset, density):
    model = framework.model(preset(density=density, feedback=Feedback(rescale=False), **SMALL))
    for step in range(6):
        framework.checked_step(model, framework.integer_gradients(step))
    framework.assert_same_on_all_ranks(model.weights())
    assert any_entry(model.residuals()) == (density < 1 and framework.size > 1)


@pytest.mark.parametrize("name", DENSE_SUMS)
def test_nothing_is_lost_where_all_entries_are_sent(framework, name):
    model = framework.model(DENSE_SUMS[name])
    for step in range(6):
        framework.checked_step(model, framework.integer_gradients(step, low=-3000, high=3001))
    framework.assert_same_on_all_ranks(model.weights())
    assert any_entry(model.residuals()) == (name != "float32" and framework.size > 1)
    if framework.size > 1:
        assert set(model.residuals()) == set(SHAPES)
        assert model.sparse_buckets() == 2
        assert model.stats().density_reached == 1
        assert model.stats().dense_bytes == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["lags", "topk", *DENSE_SUMS])
def test_nothing_is_lost_in_any_number_type(framework, name, dtype):
    known = {"lags": LAGS(density=0.1, **SMALL), **SELECTING, **DENSE_SUMS}
    model = framework.model(known[name], dtype=dtype)
    for step in range(4):
        framework.checked_step(model, framework.integer_gradients(step))
    framework.assert_same_on_all_ranks(model.weights())


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_what_a_narrow_type_rounds_away_stays_in_the_residuals(framework, dtype, bits):
    shapes = {"w": (40, 40)}
    model = framework.model(TopK(density=1.0, layers=Layers(min_numel=1)), shapes, dtype=dtype)
    gradients = framework.integer_gradients(0, shapes, low=1, high=1 << bits)
    waited = False
    for _ in range(20):  # the sums need more bits than the type has
        owed = model.residuals().get("w", 0.0) + gradients["w"].ravel()
        (applied,) = model.step(gradients).values()
        kept = model.residuals()["w"]
        waited = waited or np.any(kept)
        owed, left = framework.totals({"owed": owed, "kept": kept}).values()
        np.testing.assert_allclose(owed, applied.ravel() + left, rtol=1e-6)
    assert framework.total(np.array([waited])) > 0


@pytest.mark.parametrize("op", ["Sum", "Average"])
@pytest.mark.parametrize("name", WHOLE)
def test_density_one_sends_the_exact_sum(framework, name, op):
    model = framework.model(WHOLE[name], op=op)
    gradients = framework.integer_gradients(0)
    exact = framework.totals(gradients)
    for layer, result in model.step(gradients).items():
        if op == "Sum":
            assert np.array_equal(result.ravel(), exact[layer])
        else:
            np.testing.assert_allclose(result.ravel(), exact[layer] / framework.size, rtol=1e-6)


def test_small_and_1d_parameters_are_sent_dense_and_have_no_residual(framework):
    shapes = {
        "matrix": (50, 40),
        "small": (5, 5),
        "long_vector": (4000,),
        "scalar": framework.scalar,
    }
    model = framework.model(TopK(density=0.01, layers=Layers(min_numel=100)), shapes)
    gradients = framework.integer_gradients(0, shapes)
    results = model.step(gradients)
    exact = framework.totals(gradients)
    for name in ("small", "long_vector", "scalar"):
        assert np.array_equal(results[name].ravel(), exact[name])
    if framework.size > 1:
        assert set(model.residuals()) == {"matrix"}
        assert np.count_nonzero(results["matrix"]) <= 20 * framework.size
        assert model.stats().dense_bytes == 4 * (25 + 4000 + 1)


def test_a_dense_sum_takes_tensors_of_any_size_and_of_any_dimensions(framework):
    shapes = {
        "matrix": (50, 40),
        "small": (5, 5),
        "vector": (70,),
        "one": (1,),
        "scalar": framework.scalar,
    }
    model = framework.model(Dense(), shapes)
    gradients = framework.integer_gradients(0, shapes)
    exact = framework.totals(gradients)
    for name, result in model.step(gradients).items():
        assert np.array_equal(result.ravel(), exact[name])
    if framework.size > 1:
        assert set(model.residuals()) == set(shapes)
        assert model.stats().dense_bytes == 0


@pytest.mark.parametrize("name", ["topk", "dense"])
@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_predivided_averages_are_averages(framework, name, factor):
    model = framework.model(WHOLE[name], op="Average", predivide=factor)
    gradients = framework.integer_gradients(0)
    exact = framework.totals(gradients)
    for name, result in model.step(gradients).items():
        np.testing.assert_allclose(result.ravel(), exact[name] / framework.size, rtol=1e-6)
    multiple = 4.0 * framework.size
    results = model.step({name: np.full(shape, multiple) for name, shape in SHAPES.items()})
    assert all(np.all(result == multiple) for result in results.values())


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", ["topk", "dense"])
def test_a_missing_gradient_counts_as_zero(framework, name):
    model = framework.model(WHOLE[name])
    gradients = framework.integer_gradients(0)
    given = {name: gradients[name] for name in ("first", "bias")}
    results = model.step(given)
    exact = framework.totals({**gradients, **dict.fromkeys(("second", "last"), np.zeros(0))})
    assert set(results) == set(SHAPES)
    for name, result in results.items():
        expected = exact[name] if name in given else np.zeros(result.size)
        assert np.array_equal(result.ravel(), expected)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", [*SELECTING, *DENSE_SUMS])
def test_a_bad_gradient_of_one_rank_is_refused_on_all_and_changes_nothing(framework, name):
    model = framework.model((SELECTING | DENSE_SUMS)[name])
    model.step(framework.integer_gradients(0))
    weights, before = model.weights(), model.residuals()
    gradients = framework.integer_gradients(1)
    last = framework.size - 1
    bad = with_bad_entry(gradients, "second", np.nan) if framework.rank == last else gradients
    with pytest.raises(framework.refusal, match=f"rank {last}.*NaN or Inf"):
        model.step(bad)
    assert same(model.weights(), weights)
    for name, residual in model.residuals().items():
        assert np.array_equal(residual, before[name] + np.nan_to_num(bad[name].ravel()))
    model.step(framework.integer_gradients(2))
    framework.assert_same_on_all_ranks(model.weights())
    assert not same(model.weights(), weights)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", [*SELECTING, *DENSE_SUMS])
def test_a_finite_gradient_beyond_float32_is_refused_as_such_on_all(framework, name):
    model = framework.model((SELECTING | DENSE_SUMS)[name], dtype="float64")
    gradients = framework.integer_gradients(0)
    if framework.rank == framework.size - 1:
        gradients = with_bad_entry(gradients, "second", 1e300)
    match = f"rank {framework.size - 1} .* exceeds (float32's range|the range of float16)"
    with pytest.raises(framework.refusal, match=match) as caught:
        model.step(gradients)
    assert framework.tells_faults != ("NaN" in str(caught.value))
    assert all(np.isfinite(part).all() for part in model.residuals().values())


@pytest.mark.usefixtures("several_ranks")
def test_a_warm_up_sends_more_at_first(framework):
    shapes = {"w": (50, 40)}
    warmup = Warmup(steps=2, densities=(0.5, 0.1))
    model = framework.model(TopK(density=0.01, layers=Layers(min_numel=1), warmup=warmup), shapes)
    asked = []
    for step in range(6):
        model.step(framework.integer_gradients(step, shapes))
        asked.append(model.stats().buckets[0].asked)
    assert asked == [1000, 1000, 200, 200, 20, 20]


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize(
    "compression",
    [
        LAGS(density=0.01, layers=Layers(min_numel=1), adaptive=False),
        TopK(density=0.01, layers=Layers(min_numel=1)),
        *(one for name, one in DENSE_SUMS.items() if name != "float32"),
    ],
    ids=repr,
)
def test_a_residual_that_follows_the_learning_rate_loses_nothing(framework, compression):
    shapes = {"w": (40, 30)}
    model = framework.model(
        replace(compression, feedback=replace(compression.feedback, rescale=True)), shapes, rate=0.5
    )
    owed = 0.0
    # With rates that are powers of two, sums of what was applied and residuals are exact.
    for step, rate in enumerate((0.5, 0.5, 0.25, 1.0)):
        model.set_rate(rate)
        gradients = framework.integer_gradients(step, shapes, low=-3000, high=3001)
        model.step(gradients)
        owed = owed + rate * gradients["w"].ravel()
    left = model.residuals()["w"]
    assert np.any(left)
    assert np.array_equal(-model.weights()["w"].ravel(), framework.total(owed - left))


@pytest.mark.usefixtures("several_ranks")
def test_what_a_residual_holds_is_forgotten_where_asked(framework):
    model = framework.model(
        replace(SELECTING["topk"], feedback=replace(SELECTING["topk"].feedback, decay=0.5))
    )
    model.step(framework.integer_gradients(0))
    before = model.residuals()
    nothing = {name: np.zeros(one.shape) for name, one in model.weights().items()}
    results = model.step(nothing)
    owed = {name: 0.5 * part - model.residuals()[name] for name, part in before.items()}
    for name, total in framework.totals(owed).items():
        assert np.array_equal(total, results[name].ravel())
