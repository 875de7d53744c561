"""The quality of selection, measured on request, equals the same computed in NumPy."""

from __future__ import annotations

import horovod.torch as hvd
import numpy as np
import pytest
import torch

from hvd_sparse.torch import LAGS, GTopK, TopK, stats, watch
from tests.parallel.torch_ranks import (
    Toy,
    distribute,
    integer_gradients,
    residuals,
    total,
    velocities,
)

several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="a single rank leaves nothing behind")
OPTIONS = {"density": 0.1, "min_numel": 64}
COMPRESSIONS = {
    "topk": TopK(quality_every=1, **OPTIONS),
    "lags": LAGS(adaptive=False, quality_every=1, **OPTIONS),
    "gtopk": GTopK(quality_every=1, **OPTIONS),
    "momentum": TopK(quality_every=1, momentum_correction=0.5, **OPTIONS),
}


def flat(by_name):
    return np.concatenate([part.double().numpy().ravel() for part in by_name.values()])


def left_over_whole(before, after):
    return np.sum(after**2) / np.sum(before**2)


@several_ranks
@pytest.mark.parametrize("name", COMPRESSIONS)
def test_it_equals_numpy(name):
    compression = COMPRESSIONS[name]
    model = Toy()
    optimizer = distribute(model, compression, op=hvd.Average, gradient_predivide_factor=2.0)
    for step in range(3):
        gradients = integer_gradients(model, step)
        before, velocity = residuals(optimizer), velocities(optimizer)
        optimizer.zero_grad()
        model.backward(gradients)
        optimizer.step()
        after = residuals(optimizer)
        accumulated, applied = {}, {}
        for layer in after:
            inflow = gradients[layer].double().flatten() / 2
            if layer in velocity:
                inflow += 0.5 * velocity[layer]
            accumulated[layer] = before[layer] + inflow
            grad = getattr(model, layer).grad.double().flatten()
            applied[layer] = grad * hvd.size() / 2
        quality = stats(optimizer).last.quality
        expected = left_over_whole(flat(accumulated), flat(after))
        assert quality.compression_error == pytest.approx(expected, rel=1e-5)

        units = {layer: [layer] for layer in after}
        if not compression.layer_wise:
            (unit,) = quality.deltas
            units = {unit: list(after)}
        assert set(quality.deltas) == set(units)
        for unit, layers in units.items():
            own = flat({layer: accumulated[layer] for layer in layers})
            summed = total(torch.from_numpy(own)).numpy()
            rest = summed - flat({layer: applied[layer] for layer in layers})
            k = np.ceil(0.1 * own.size)
            expected = left_over_whole(summed, rest) / (1 - k / own.size)
            assert quality.deltas[unit] == pytest.approx(expected, rel=1e-4)
        if name == "topk":  # leaves less than random k; methods that drop entries may leave more
            assert 0 < quality.largest_delta <= 1


@several_ranks
def test_it_is_measured_when_asked_for_and_watched():
    model = Toy()
    optimizer = distribute(model, TopK(quality_every=2, **OPTIONS))
    told = []
    watch(optimizer, lambda metrics, step: told.append(metrics))
    for step in range(4):
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step))
        optimizer.step()
    assert ["assumption_delta" in metrics for metrics in told] == [True, False, True, False]


@several_ranks
def test_all_that_is_sent_leaves_nothing_behind():
    model = Toy()
    optimizer = distribute(model, TopK(density=1.0, min_numel=64, quality_every=1))
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    quality = stats(optimizer).last.quality
    assert quality.compression_error == 0
    assert quality.largest_delta == 0


@several_ranks
def test_where_nodes_share_a_residual_no_rank_tells_its_own_error():
    model = Toy()
    compression = TopK(collective="hierarchical", quality_every=1, **OPTIONS)
    optimizer = distribute(model, compression)
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    quality = stats(optimizer).last.quality
    assert quality.compression_error is None
    assert 0 < quality.largest_delta <= 1
