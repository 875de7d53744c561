"""The quality of selection, measured on request, equals the same computed in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hvd_sparse.compression import LAGS, Collective, Feedback, GTopK, Layers, TopK
from tests.dense_sums import DENSE_SUMS
from tests.frameworks import SHAPES

OPTIONS = {"density": 0.1, "layers": Layers(min_numel=64)}
COMPRESSIONS = {
    "topk": TopK(feedback=Feedback(quality_every=1), **OPTIONS),
    "lags": LAGS(adaptive=False, warmup=None, feedback=Feedback(quality_every=1), **OPTIONS),
    "lags, gtopk": LAGS(
        adaptive=False,
        collective="gtopk",
        warmup=None,
        feedback=Feedback(quality_every=1),
        **OPTIONS,
    ),
    "gtopk": GTopK(feedback=Feedback(quality_every=1), **OPTIONS),
    "momentum": TopK(feedback=Feedback(quality_every=1, momentum=0.5), **OPTIONS),
}


def flat(by_name):
    return np.concatenate([part.ravel() for part in by_name.values()])


def left_over_whole(before, after):
    return np.sum(after**2) / np.sum(before**2)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", COMPRESSIONS)
def test_quality_equals_numpy(framework, name):
    compression = COMPRESSIONS[name]
    model = framework.model(compression, op="Average", predivide=2.0)
    for step in range(3):
        gradients = framework.integer_gradients(step)
        before, velocity = model.residuals(), model.velocities()
        results = model.step(gradients)
        after = model.residuals()
        accumulated, applied = {}, {}
        for layer in after:
            inflow = gradients[layer].ravel() / 2
            if layer in velocity:
                inflow = inflow + 0.5 * velocity[layer]
            accumulated[layer] = before.get(layer, 0.0) + inflow
            applied[layer] = results[layer].ravel() * framework.size / 2
        quality = model.stats().quality
        expected = left_over_whole(flat(accumulated), flat(after))
        assert quality.compression_error == pytest.approx(expected, rel=1e-5)

        units = {layer: [layer] for layer in after}
        if not compression.layers.layer_wise:
            (unit,) = quality.deltas
            units = {unit: list(after)}
        assert set(quality.deltas) == set(units)
        for unit, layers in units.items():
            own = flat({layer: accumulated[layer] for layer in layers})
            summed = framework.total(own)
            rest = summed - flat({layer: applied[layer] for layer in layers})
            k = np.ceil(0.1 * own.size)
            expected = left_over_whole(summed, rest) / (1 - k / own.size)
            assert quality.deltas[unit] == pytest.approx(expected, rel=1e-4)
        if name == "topk":  # leaves less than random k; methods that drop entries may leave more
            assert 0 < quality.largest_delta <= 1


@pytest.mark.usefixtures("several_ranks")
def test_all_that_is_sent_leaves_nothing_behind(framework):
    model = framework.model(
        TopK(density=1.0, layers=Layers(min_numel=64), feedback=Feedback(quality_every=1))
    )
    model.step(framework.integer_gradients(0))
    quality = model.stats().quality
    assert quality.compression_error == 0
    assert quality.largest_delta == 0


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("name", DENSE_SUMS)
def test_a_dense_sum_leaves_its_rounding_errors_behind(framework, name):
    model = framework.model(
        replace(DENSE_SUMS[name], feedback=replace(DENSE_SUMS[name].feedback, quality_every=1))
    )
    for step in range(3):
        gradients = framework.integer_gradients(step, low=-3000, high=3001)
        before = model.residuals()
        model.step(gradients)
        after = model.residuals()
        accumulated = {layer: before.get(layer, 0.0) + gradients[layer].ravel() for layer in after}
        quality = model.stats().quality
        expected = left_over_whole(flat(accumulated), flat(after))
        assert quality.compression_error == pytest.approx(expected, rel=1e-5)
        assert (expected > 0) == (name != "float32")
        assert quality.deltas == dict.fromkeys(SHAPES, 0)  # no entry was left to chance


@pytest.mark.usefixtures("several_ranks")
def test_where_nodes_share_a_residual_no_rank_tells_its_own_error(framework):
    if not framework.shares_residuals:
        pytest.skip("nodes_first adds up residuals on the CPU")
    model = framework.model(
        TopK(collective=Collective(nodes_first=True), feedback=Feedback(quality_every=1), **OPTIONS)
    )
    model.step(framework.integer_gradients(0))
    quality = model.stats().quality
    assert quality.compression_error is None
    assert 0 < quality.largest_delta <= 1


@pytest.mark.usefixtures("several_ranks")
def test_quality_is_measured_in_the_steps_that_ask_for_it(framework):
    model = framework.model(TopK(feedback=Feedback(quality_every=2), **OPTIONS))
    measured = []
    for step in range(4):
        model.step(framework.integer_gradients(step))
        measured.append(model.stats().quality is not None)
    assert measured == [True, False, True, False]


@pytest.mark.usefixtures("several_ranks")
def test_a_step_that_is_refused_tells_nothing(framework):
    model = framework.model(COMPRESSIONS["topk"])
    model.step(framework.integer_gradients(0))
    assert model.stats().quality is not None
    with pytest.raises(framework.refusal, match="NaN or Inf"):
        model.step({name: np.full(shape, np.nan) for name, shape in SHAPES.items()})
    assert model.stats().quality is None
