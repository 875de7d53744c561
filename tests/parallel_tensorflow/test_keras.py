"""Through Keras: weights are bitwise equal on all ranks after fit, whatever the compression."""

from __future__ import annotations

import horovod.tensorflow
import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse.tensorflow.keras as hvd
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.tensorflow import LAGS, GTopK, TopK, prepare, residual_variables, stats
from tests.parallel_tensorflow.ranks import assert_same_on_all_ranks

COMPRESSIONS = {
    "none": hvd.Compression.none,
    "fp16": hvd.Compression.fp16,
    "topk": TopK(density=0.05, min_numel=64),
    "lags": LAGS(density=0.05, min_numel=64, adaptive=False),
    "gtopk": GTopK(density=0.05, min_numel=64),
}


def make_model(optimizer, compression, **compiled):
    keras.utils.set_random_seed(hvd.rank())  # the broadcast has to make them equal
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=hvd.DistributedOptimizer(optimizer, compression=compression),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **compiled,
    )
    return model


def fit(model, epochs=2, **options):
    rng = np.random.default_rng(100 + hvd.rank())
    images = rng.standard_normal((48, 8, 8, 1), np.float32)
    labels = rng.integers(0, 10, 48)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    return model.fit(
        images, labels, batch_size=16, epochs=epochs, verbose=0, callbacks=callbacks, **options
    )


def trainable(model):
    return [variable.value for variable in model.trainable_variables]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(
    "compiled",
    [{"jit_compile": False}, {"jit_compile": "auto"}, {"run_eagerly": True}],
    ids=["graph", "auto", "eager"],
)
def test_weights_are_bitwise_equal_after_fit(compression, compiled):
    if compression == "fp16" and "run_eagerly" not in compiled:
        pytest.skip("one way of running is enough for a compression that is Horovod's")
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    model = make_model(optimizer, COMPRESSIONS[compression], **compiled)
    begin = [v.numpy() for v in trainable(model)]
    fit(model)
    assert_same_on_all_ranks(trainable(model))
    assert_same_on_all_ranks([v.value for v in model.optimizer.variables])
    assert not np.array_equal(begin[0], trainable(model)[0])


def test_adam_and_a_schedule_and_accumulation_work():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)
    optimizer = keras.optimizers.Adam(schedule, gradient_accumulation_steps=2)
    model = make_model(optimizer, COMPRESSIONS["topk"])
    fit(model)
    assert_same_on_all_ranks(trainable(model))


@pytest.mark.parametrize("as_dense", [False, True])
def test_the_slices_of_an_embedding_are_exchanged(as_dense):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Embedding(50, 16), keras.layers.Flatten(),
         keras.layers.Dense(10)]
    )  # fmt: skip
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1), compression=COMPRESSIONS["topk"], sparse_as_dense=as_dense
    )
    model.compile(optimizer=optimizer, loss="mse")
    rng = np.random.default_rng(hvd.rank())
    model.fit(rng.integers(0, 50, (32, 6)), rng.standard_normal((32, 10)), epochs=2, verbose=0)
    assert_same_on_all_ranks(trainable(model))


@pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")
def test_the_state_of_an_optimizers_exchange_can_be_prepared():
    compression = COMPRESSIONS["topk"]
    model = make_model(keras.optimizers.SGD(0.05), compression)
    prepared = prepare(model.trainable_variables, compression, optimizer=model.optimizer)
    fit(model, epochs=1)
    found = residual_variables(model.optimizer)
    assert [id(one) for one in found] == [id(one) for one in prepared]
    assert any(np.any(one.numpy()) for one in found)


def test_mixed_bfloat16_works():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = make_model(keras.optimizers.SGD(0.05), COMPRESSIONS["lags"])
        fit(model)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert_same_on_all_ranks(trainable(model))


def test_a_saved_model_is_one_of_keras_alone(tmp_path):
    model = make_model(keras.optimizers.Adam(0.01), COMPRESSIONS["topk"])
    fit(model, epochs=1)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.Adam
    for ours, theirs in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        assert np.array_equal(ours, theirs)


@pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")
def test_compiling_with_xla_is_refused_by_name():
    model = make_model(keras.optimizers.SGD(0.1), COMPRESSIONS["topk"], jit_compile=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="HvdSparseExchange"):
        fit(model, epochs=1)


def test_what_cannot_be_done_is_refused():
    sgd = keras.optimizers.SGD
    with pytest.raises(UnsupportedError, match="gradient_accumulation_steps"):
        hvd.DistributedOptimizer(sgd(), compression=TopK, backward_passes_per_step=2)
    with pytest.raises(UnsupportedError, match="LossScaleOptimizer"):
        hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(sgd()), compression=TopK)
    with pytest.raises(UnsupportedError, match="adaptive must be False"):
        hvd.DistributedOptimizer(sgd(), compression=LAGS)
    once = hvd.DistributedOptimizer(sgd(), compression=TopK)
    with pytest.raises(InvalidArgumentError, match="already is"):
        hvd.DistributedOptimizer(once, compression=TopK)


def test_the_optimizer_stays_what_it_was():
    optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
    distributed = hvd.DistributedOptimizer(optimizer, compression=TopK)
    assert distributed is optimizer
    assert isinstance(distributed, keras.optimizers.SGD)
    assert float(tf.convert_to_tensor(distributed.lr)) == pytest.approx(0.1)


@pytest.mark.parametrize("compression", ["none", "topk"])
def test_a_tape_takes_the_variables_of_a_model(compression):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(30), keras.layers.Dense(5)])
    optimizer = keras.optimizers.SGD(0.1)
    x = tf.constant(np.random.default_rng(hvd.rank()).standard_normal((8, 20)), tf.float32)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x) ** 2)
        tape = horovod.tensorflow.DistributedGradientTape(
            tape, compression=COMPRESSIONS[compression]
        )
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for _ in range(3):
        step()
    assert_same_on_all_ranks(trainable(model))
    told = stats(model.trainable_variables)
    if hvd.size() > 1 and compression == "topk":
        assert [bucket.numel for bucket in told.buckets] == [150 + 600]
        assert told.dense_bytes == 4 * 35
    else:
        assert told is None
