"""Keras 2 in a process of its own, instead of Keras 3."""

from __future__ import annotations

import gc
import importlib.util
import os

import pytest

if importlib.util.find_spec("tf_keras") is None or os.environ.get("TF_USE_LEGACY_KERAS") != "1":
    pytest.skip("needs tf_keras and TF_USE_LEGACY_KERAS=1", allow_module_level=True)

import horovod.tensorflow
import numpy as np
import tensorflow as tf

import hvd_sparse.tensorflow.keras as hvd
from hvd_sparse.compression import Layers
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.tensorflow import (
    LAGS,
    Dense,
    GTopK,
    TopK,
    prepare,
)
from hvd_sparse.tensorflow.registry import live_exchanges
from hvd_sparse.tensorflow.settings import Settings
from tests.parallel_tensorflow.ranks import a_name, assert_same_on_all_ranks

keras = tf.keras
several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")
SMALL = {"density": 0.05, "layers": Layers(min_numel=64)}
COMPRESSIONS = [TopK(**SMALL), LAGS(adaptive=False, **SMALL), GTopK(**SMALL)]
COMPRESSIONS.append(Dense(values="bfloat16"))


def make_model(optimizer, **compiled):
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10, dtype="float32"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, **compiled)
    return model


def fit(model, epochs=2, callbacks=(), seed=100):
    rng = np.random.default_rng(seed + hvd.rank())
    images = rng.standard_normal((48, 8, 8, 1), np.float32)
    labels = rng.integers(0, 10, 48)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), *callbacks]
    model.fit(
        images, labels, batch_size=12, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks
    )


def sgd(kind):
    """Returns an optimizer of either kind."""
    return {"new": keras.optimizers, "old": keras.optimizers.legacy}[kind].SGD(0.05, momentum=0.9)


@pytest.mark.parametrize("kind", ["new", "old"])
def test_an_optimizer_keeps_its_momentum(kind):
    settings = Settings.checked(TopK).of_optimizer(sgd(kind))
    assert settings.momentum == settings.dampening == 0


@pytest.mark.parametrize("kind", ["new", "old"])
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("compression", COMPRESSIONS, ids=repr)
def test_weights_are_bitwise_equal_after_fit(compression, eagerly, passes, kind):
    keras.utils.set_random_seed(hvd.rank())
    optimizer = hvd.DistributedOptimizer(
        sgd(kind), compression=compression, backward_passes_per_step=passes
    )
    model = make_model(optimizer, run_eagerly=eagerly)
    fit(model)
    assert_same_on_all_ranks(model.trainable_variables)
    if hvd.size() > 1:
        assert optimizer.exchange.stats.last.step == 8 // passes - 1


@pytest.mark.parametrize("kind", ["new", "old"])
@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("compression", [TopK(**SMALL), hvd.Compression.none], ids=["topk", "none"])
@pytest.mark.parametrize("by", ["user", "user inside", "compile"])
def test_with_loss_scaling_all_ranks_skip_a_step_or_none(by, compression, eagerly, kind):
    if by == "user" and compression is hvd.Compression.none:
        pytest.skip("a LossScaleOptimizer in Horovod's own wrapper is Horovod's affair")
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        optimizer = sgd(kind)
        if by == "user":
            optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=1024)
        optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
        if by == "user inside":
            optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=1024)
        keras.utils.set_random_seed(1)
        model = make_model(optimizer, run_eagerly=eagerly)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    scaling = model.optimizer
    assert isinstance(scaling, keras.mixed_precision.LossScaleOptimizer)
    rng = np.random.default_rng(hvd.rank())
    images = rng.standard_normal((16, 8, 8, 1)).astype(np.float32)
    labels = rng.integers(0, 10, 16)
    model.train_on_batch(images, labels)
    weights, scale = [v.numpy() for v in model.trainable_variables], float(scaling.loss_scale)
    bad = np.where(hvd.rank() == hvd.size() - 1, np.nan, 1.0) * images
    model.train_on_batch(bad, labels)
    assert float(scaling.loss_scale) == scale / 2
    for before, after in zip(weights, model.trainable_variables, strict=True):
        assert np.array_equal(before, after)
    for _ in range(3):
        model.train_on_batch(images, labels)
    assert not np.array_equal(weights[0], model.trainable_variables[0])
    assert_same_on_all_ranks(model.trainable_variables)
    if hvd.size() > 1 and compression is not hvd.Compression.none:
        left = scaling.exchange.residual_variables[0].numpy()
        assert np.any(left)
        assert np.abs(left).max() < 100  # unscaled


@several_ranks
@pytest.mark.parametrize("kind", ["new", "old"])
@pytest.mark.parametrize("way", ["eager", "graph"])
@pytest.mark.parametrize("changes", ["by schedule", "by decay"])
def test_the_residual_follows_a_learning_rate_that_changes_by_itself(changes, way, kind):
    if changes == "by decay" and kind == "new":
        pytest.skip("the newer optimizers have no decay")
    rates, rate, options = (0.5, 0.25, 1.0), 0.5, {}
    if changes == "by schedule":
        rate = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], rates)
    else:
        rates, options = (0.5, 0.25), {"decay": 1.0}
    optimizers = {"new": keras.optimizers, "old": keras.optimizers.legacy}[kind]
    variable = tf.Variable(tf.zeros((40, 30)), name="w")
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(rate, **options),
        compression=LAGS(density=0.01, layers=Layers(min_numel=1), adaptive=False),
        op=hvd.Sum,
    )

    def step(gradient):
        optimizer.minimize(lambda: tf.reduce_sum(variable * gradient), [variable])

    step = step if way == "eager" else tf.function(step)
    rng = np.random.default_rng(hvd.rank())
    owed = 0.0
    for applied in rates:
        gradient = rng.integers(-9, 10, (40, 30)).astype(np.float32)
        step(tf.constant(gradient))
        owed = owed + applied * gradient
    # With rates that are powers of two, sums of applied values and residuals are exact.
    left = rates[-1] * optimizer.exchange.residual_variables[0].numpy().reshape(40, 30)
    total = hvd.allreduce(tf.constant(owed - left), op=hvd.Sum, name=a_name()).numpy()
    assert np.array_equal(-variable.numpy(), total)
    assert np.any(left)


@several_ranks
def test_several_passes_under_loss_scaling_are_refused():
    optimizer = hvd.DistributedOptimizer(
        sgd("new"), compression=TopK(**SMALL), backward_passes_per_step=2
    )
    model = make_model(keras.mixed_precision.LossScaleOptimizer(optimizer), run_eagerly=True)
    with pytest.raises(UnsupportedError, match="must be 1 under loss scaling"):
        model.train_on_batch(np.ones((4, 8, 8, 1)), np.zeros(4))


@several_ranks
def test_a_callback_tells_what_steps_cost():
    model = make_model(hvd.DistributedOptimizer(sgd("new"), compression=TopK(**SMALL)))
    told = []
    fit(model, 1, [hvd.WatchCallback(lambda metrics, step: told.append((step, metrics)), every=2)])
    assert [step for step, _ in told] == [0, 2]
    assert told[-1][1]["bytes_sent"] > 0


@pytest.mark.parametrize("kind", ["new", "old"])
@pytest.mark.parametrize("compression", COMPRESSIONS, ids=repr)
def test_a_resumed_run_goes_on_bit_for_bit(compression, kind, tmp_path):
    folder = horovod.tensorflow.allgather_object(str(tmp_path / "last"), name=a_name())[0]
    models = []
    for resumed in (False, True):
        keras.utils.set_random_seed(hvd.rank())
        model = make_model(hvd.DistributedOptimizer(sgd(kind), compression=compression))
        models.append(model)
        if not resumed:
            fit(model, 1)
            model.optimizer.exchange.save_checkpoint(folder, model, epoch=1)
        else:
            if hvd.size() > 1:
                prepare(model.trainable_variables, compression, optimizer=model.optimizer)
            assert model.optimizer.exchange.load_checkpoint(folder, model) == {"epoch": 1}
        fit(model, 1, seed=200)
    one, other = models
    for ours, theirs in zip(one.variables, other.variables, strict=True):
        assert np.array_equal(ours, theirs)
    if hvd.size() > 1:
        ours, theirs = (model.optimizer.exchange.residual_variables[0].numpy() for model in models)
        assert np.array_equal(ours, theirs)
        assert np.any(ours)


@several_ranks
def test_saving_amid_several_passes_is_refused(tmp_path):
    model = make_model(
        hvd.DistributedOptimizer(sgd("new"), compression=TopK(**SMALL), backward_passes_per_step=2)
    )
    model.train_on_batch(np.ones((4, 8, 8, 1)), np.zeros(4))
    with pytest.raises(InvalidArgumentError, match="not exchanged yet"):
        model.optimizer.exchange.save_checkpoint(tmp_path / "last", model)


@several_ranks
@pytest.mark.parametrize("family", [keras.optimizers, keras.optimizers.legacy])
def test_a_dropped_optimizer_ends_its_exchange_at_once(family):
    variables = [tf.Variable(tf.zeros((40, 30)))]
    gc.collect()
    before = live_exchanges()
    gc.disable()  # which would find cycles
    try:
        optimizer = hvd.DistributedOptimizer(family.SGD(0.5), compression=TopK(**SMALL))
        optimizer.minimize(lambda: tf.reduce_sum(variables[0]), variables)
        assert len(live_exchanges()) == len(before) + 1
        del optimizer
        assert live_exchanges() == before
    finally:
        gc.enable()
