"""The quality of selection, measured on request, equals the same computed in NumPy."""

from __future__ import annotations

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.tensorflow import LAGS, GTopK, TopK, prepare, stats
from hvd_sparse.tensorflow.keras import WatchCallback
from tests.parallel_tensorflow.ranks import (
    SHAPES,
    integer_gradients,
    loss_of,
    make_variables,
    on_each_device,
    residuals,
    total,
    velocities,
)

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank leaves nothing behind")
OPTIONS = {"density": 0.1, "min_numel": 64}
COMPRESSIONS = {
    "topk": TopK(quality_every=1, **OPTIONS),
    "lags": LAGS(adaptive=False, quality_every=1, **OPTIONS),
    "gtopk": GTopK(quality_every=1, **OPTIONS),
    "momentum": TopK(quality_every=1, momentum_correction=0.5, **OPTIONS),
    "hierarchical": TopK(quality_every=1, collective="hierarchical", **OPTIONS),
}


def step_of(variables, compression, mode=tf.function):
    @mode
    def step(gradients):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, gradients)
        tape = hvd.DistributedGradientTape(
            tape, compression=compression, op=hvd.Average, gradient_predivide_factor=2.0
        )
        return tape.gradient(loss, variables)

    return step


def left_over_whole(before, after):
    return np.sum(after**2) / np.sum(before**2)


@on_each_device
@pytest.mark.parametrize("mode", [lambda step: step, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize("name", [name for name in COMPRESSIONS if name != "hierarchical"])
def test_it_equals_numpy(name, mode, device):
    compression = COMPRESSIONS[name]
    variables = make_variables(device=device)
    step = step_of(variables, compression, mode)
    prepare(variables, compression, gradient_predivide_factor=2.0)
    for number in range(3):
        gradients = dict(zip(SHAPES, integer_gradients(variables, number), strict=True))
        before, velocity = residuals(), velocities()
        averages = dict(zip(SHAPES, step(list(gradients.values())), strict=True))
        after = residuals()
        accumulated, applied = {}, {}
        for layer in after:
            inflow = gradients[layer].numpy().ravel() / 2.0
            if layer in velocity:
                inflow = inflow + 0.5 * velocity[layer]
            accumulated[layer] = before[layer] + inflow
            applied[layer] = averages[layer].numpy().ravel() * hvd.size() / 2
        quality = stats(variables).quality
        own, rest = (np.concatenate(list(one.values())) for one in (accumulated, after))
        assert quality.compression_error == pytest.approx(left_over_whole(own, rest), rel=1e-5)

        units = {layer: [layer] for layer in after}
        if not compression.layer_wise:
            (unit,) = quality.deltas
            units = {unit: list(after)}
        assert set(quality.deltas) == set(units)
        for unit, layers in units.items():
            summed = total(np.concatenate([accumulated[layer] for layer in layers]))
            rest = summed - np.concatenate([applied[layer] for layer in layers])
            k = np.ceil(0.1 * summed.size)
            expected = left_over_whole(summed, rest) / (1 - k / summed.size)
            assert quality.deltas[unit] == pytest.approx(expected, rel=1e-4)
        if name == "topk":  # leaves less than random k; methods that drop entries may leave more
            assert 0 < quality.largest_delta <= 1


def test_where_nodes_share_a_residual_no_rank_tells_its_own_error():
    variables = make_variables()
    step_of(variables, COMPRESSIONS["hierarchical"])(integer_gradients(variables, 0))
    quality = stats(variables).quality
    assert quality.compression_error is None
    assert 0 < quality.largest_delta <= 1


@on_each_device
def test_a_step_that_is_refused_tells_nothing(device):
    variables = make_variables(device=device)
    step = step_of(variables, COMPRESSIONS["topk"])
    step(integer_gradients(variables, 0))
    assert stats(variables).quality is not None
    with pytest.raises(tf.errors.InvalidArgumentError, match="NaN or Inf"):
        step([np.nan * gradient for gradient in integer_gradients(variables, 0)])
    assert stats(variables).quality is None


def test_it_is_measured_when_asked_for_and_watched():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(30), keras.layers.Dense(5)])
    compression = TopK(quality_every=2, **OPTIONS)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), compression=compression)
    model.compile(optimizer=optimizer, loss="mse")
    told = []
    rng = np.random.default_rng(hvd.rank())
    model.fit(
        rng.standard_normal((32, 20)), rng.standard_normal((32, 5)), batch_size=8, verbose=0,
        callbacks=[WatchCallback(lambda metrics, step: told.append(metrics))],
    )  # fmt: skip
    assert ["assumption_delta" in metrics for metrics in told] == [True, False, True, False]
    assert 0 < told[0]["compression_error"] < 1
