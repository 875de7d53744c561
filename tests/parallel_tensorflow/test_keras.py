"""Keras: weights are bitwise equal on all ranks after fit, whatever the compression."""

from __future__ import annotations

import horovod.tensorflow
import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse.tensorflow.keras as hvd
from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.tensorflow import (
    LAGS,
    Exchange,
    GTopK,
    TopK,
    compat,
    prepare,
)
from tests.cases import in_turn
from tests.parallel_tensorflow.ranks import assert_same_on_all_ranks

COMPRESSIONS = {
    "none": hvd.Compression.none,
    "fp16": hvd.Compression.fp16,
    "topk": TopK(density=0.05, layers=Layers(min_numel=64)),
    "lags": LAGS(density=0.05, layers=Layers(min_numel=64), adaptive=False),
    "gtopk": GTopK(density=0.05, layers=Layers(min_numel=64)),
    "sbc": hvd.SBC(density=0.05, layers=Layers(min_numel=64)),
    "dense": hvd.Dense(values="bfloat16"),
}

WAYS = {
    "graph": {"jit_compile": False},
    "auto": {"jit_compile": "auto"},
    "eager": {"run_eagerly": True},
}


def make_model(optimizer, compression, **compiled):
    keras.utils.set_random_seed(hvd.rank())  # the broadcast must make them equal
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
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


# Horovod's own compressions and sparse ones, in each execution mode. Those that are long train in
# laws, or in other tests of Keras.
@pytest.mark.parametrize(
    ("compression", "way"),
    [
        pytest.param("none", "graph", marks=pytest.mark.long),
        pytest.param("none", "auto", marks=pytest.mark.long),
        ("fp16", "eager"),
        ("lags", "graph"),
        ("topk", "auto"),
        pytest.param("gtopk", "eager", marks=pytest.mark.long),
        pytest.param("sbc", "graph", marks=pytest.mark.long),
        pytest.param("dense", "graph", marks=pytest.mark.long),
        pytest.param("dense", "eager", marks=pytest.mark.long),
    ],
)
def test_weights_are_bitwise_equal_after_fit(compression, way):
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    model = make_model(optimizer, COMPRESSIONS[compression], **WAYS[way])
    begin = [v.numpy() for v in trainable(model)]
    fit(model)
    assert_same_on_all_ranks(trainable(model))
    assert_same_on_all_ranks([v.value for v in model.optimizer.variables])
    assert not np.array_equal(begin[0], trainable(model)[0])


@pytest.mark.parametrize("compression", ["topk", "dense"])
def test_adam_and_a_schedule_and_accumulation_work(compression):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)
    optimizer = keras.optimizers.Adam(schedule, gradient_accumulation_steps=2)
    model = make_model(optimizer, COMPRESSIONS[compression])
    fit(model)
    assert_same_on_all_ranks(trainable(model))


@pytest.mark.parametrize("compression", ["topk", "dense"])
@pytest.mark.parametrize("as_dense", [False, True])
def test_the_slices_of_an_embedding_are_exchanged(as_dense, compression):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Embedding(50, 16), keras.layers.Flatten(),
         keras.layers.Dense(10)]
    )  # fmt: skip
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1), compression=COMPRESSIONS[compression], sparse_as_dense=as_dense
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
    found = model.optimizer.exchange.residual_variables
    assert [id(one) for one in found] == [id(one) for one in prepared]
    assert any(np.any(one.numpy()) for one in found)


@pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")
def test_several_functions_with_one_optimizer_share_residuals():
    variable = keras.Variable(np.zeros((40, 30), np.float32), name="w")
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=COMPRESSIONS["topk"], op=hvd.Sum
    )
    optimizer.build([variable])
    steps = [
        tf.function(lambda gradient: optimizer.apply([gradient], [variable])),
        tf.function(lambda gradient: optimizer.apply([2.0 * gradient], [variable])),
    ]
    owed = np.zeros((40, 30))
    for number in range(4):
        rng = np.random.default_rng(10 * number + hvd.rank())
        gradient = rng.integers(-9, 10, (40, 30)).astype(np.float32)
        owed += gradient * (1 + number % 2)
        steps[number % 2](tf.constant(gradient))
    assert optimizer.exchange.stats.last.step == 3
    owed -= optimizer.exchange.residual_variables[0].numpy().reshape(40, 30)
    expected = hvd.allreduce(tf.constant(owed), op=hvd.Sum, name="owed by several").numpy()
    assert np.array_equal(-variable.numpy(), expected)


@pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")
def test_a_bad_gradient_of_one_rank_ends_the_step_on_all_and_changes_nothing():
    model = make_model(keras.optimizers.SGD(0.05), COMPRESSIONS["topk"])
    fit(model, epochs=1)
    weights = [v.numpy() for v in trainable(model)]
    bad = np.full((16, 8, 8, 1), np.nan if hvd.rank() == hvd.size() - 1 else 1.0, np.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {hvd.size() - 1}.*NaN or Inf"):
        model.train_on_batch(bad, np.zeros(16))
    for before, after in zip(weights, trainable(model), strict=True):
        assert np.array_equal(before, after)
    model.train_on_batch(np.ones((16, 8, 8, 1)), np.zeros(16))
    assert_same_on_all_ranks(trainable(model))


@pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")
def test_a_callback_tells_what_steps_cost(tmp_path):
    model = make_model(keras.optimizers.SGD(0.05), COMPRESSIONS["topk"])
    told = []
    writer = tf.summary.create_file_writer(str(tmp_path))
    watching = [
        hvd.WatchCallback(lambda metrics, step: told.append((step, metrics)), every=2),
        hvd.WatchCallback(writer),
    ]
    model.fit(np.ones((64, 8, 8, 1)), np.zeros(64), batch_size=16, verbose=0, callbacks=watching)
    writer.close()
    assert [step for step, _ in told] == [0, 2]
    assert told[-1][1]["bytes_sent"] > 0
    assert "wait_seconds" not in told[-1][1]
    events = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"hvd_sparse/density_reached" in events
    with pytest.raises(InvalidArgumentError, match="got str"):
        hvd.WatchCallback("runs")


@pytest.mark.parametrize(
    ("options", "plain"),
    [({}, True), ({"momentum": 0.9}, False), ({"clipnorm": 1.0}, False)],
)
def test_by_default_the_residual_follows_the_rate_of_plain_sgd_alone(options, plain):
    assert compat.is_plain_sgd(keras.optimizers.SGD(0.5, **options)) == plain


@pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")
@pytest.mark.parametrize(
    ("preset", "options", "follows"),
    [
        (LAGS, {}, True),
        (LAGS, {"clipnorm": 1e9}, False),
        (TopK, {}, False),
    ],
)
def test_the_residual_follows_the_learning_rate_where_it_should(preset, options, follows):
    variable = keras.Variable(np.zeros((40, 30), np.float32), name="w")
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.5, **options),
        compression=preset(density=0.01, layers=Layers(min_numel=1), adaptive=False),
        op=hvd.Sum,
    )
    rng = np.random.default_rng(hvd.rank())
    rates, owed = (0.5, 0.5, 0.25, 1.0), 0.0
    for rate in rates:
        gradient = rng.integers(-9, 10, (40, 30)).astype(np.float32)
        optimizer.learning_rate = rate
        optimizer.apply([tf.constant(gradient)], [variable])
        owed = owed + rate * gradient
    # With rates that are powers of two, sums of applied values and residuals are exact.
    left = rates[-1] * optimizer.exchange.residual_variables[0].numpy().reshape(40, 30)
    total = hvd.allreduce(tf.constant(owed - left), op=hvd.Sum, name="owed").numpy()
    assert np.array_equal(-variable.numpy(), total) == follows
    assert np.any(left)


def test_mixed_bfloat16_works():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = make_model(keras.optimizers.SGD(0.05), COMPRESSIONS["lags"])
        fit(model)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert_same_on_all_ranks(trainable(model))


@pytest.mark.parametrize(
    ("by", "compression", "run_eagerly"),
    in_turn(["user", "compile"], ["none", "topk"], [False, True]),
)
def test_with_loss_scaling_all_ranks_skip_a_step_or_none(by, compression, run_eagerly):
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((20,)), keras.layers.Dense(30), keras.layers.Dense(5, dtype="float32")]
        )
        optimizer = keras.optimizers.SGD(0.01)
        if by == "user":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer = hvd.DistributedOptimizer(optimizer, compression=COMPRESSIONS[compression])
        model.compile(optimizer=optimizer, loss="mse", run_eagerly=run_eagerly)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    scaling = model.optimizer
    assert type(scaling) is keras.optimizers.LossScaleOptimizer
    rng = np.random.default_rng(hvd.rank())
    x, y = rng.standard_normal((8, 20), np.float32), rng.standard_normal((8, 5), np.float32)
    model.train_on_batch(x, y)
    weights, scale = [v.numpy() for v in trainable(model)], float(scaling.dynamic_scale)
    bad = np.where(hvd.rank() == hvd.size() - 1, np.nan, 1.0) * x
    model.train_on_batch(bad, y)
    assert float(scaling.dynamic_scale) == scale / 2
    for before, after in zip(weights, trainable(model), strict=True):
        assert np.array_equal(before, after)
    for _ in range(3):
        model.train_on_batch(x, y)
    assert not np.array_equal(weights[0], trainable(model)[0])
    assert_same_on_all_ranks(trainable(model))
    assert_same_on_all_ranks([v.value for v in scaling.variables])


def test_a_loss_scale_factor_changes_nothing():
    compression = TopK(
        density=0.05,
        layers=Layers(min_numel=64),
        feedback=Feedback(clip_norm=8.0, weight_decay=0.25),
    )
    weights = []
    for factors in ((None, None, None), (1024.0, 1024.0, 64.0)):
        variable = keras.Variable(np.ones((40, 30), np.float32), name="w")
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), compression=compression)
        rng = np.random.default_rng(hvd.rank())
        for factor in factors:
            optimizer.loss_scale_factor = factor
            gradient = rng.integers(-9, 10, (40, 30)).astype(np.float32)
            optimizer.apply([tf.constant(gradient * (factor or 1))], [variable])
        weights.append(variable.numpy())
    assert np.array_equal(*weights)
    assert len(np.unique(weights[0])) > 1


def test_float16_variables_under_loss_scaling_are_refused():
    keras.mixed_precision.set_global_policy("float16")
    try:
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(30)])
    finally:
        keras.mixed_precision.set_global_policy("float32")
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(), compression=TopK(layers=Layers(min_numel=1))
    )
    model.compile(optimizer=keras.optimizers.LossScaleOptimizer(optimizer), loss="mse")
    with pytest.raises(UnsupportedError, match="is float16"):
        model.train_on_batch(np.ones((4, 20)), np.ones((4, 30)))


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
    with pytest.raises(tf.errors.InvalidArgumentError, match="HvdSparse"):
        fit(model, epochs=1)


def test_what_cannot_be_done_is_refused():
    sgd = keras.optimizers.SGD
    with pytest.raises(InvalidArgumentError, match="backward_passes_per_step must be"):
        hvd.DistributedOptimizer(sgd(), compression=TopK, backward_passes_per_step=0)
    accumulating = hvd.DistributedOptimizer(sgd(), compression=TopK, backward_passes_per_step=2)
    scaling = keras.optimizers.LossScaleOptimizer(accumulating)
    with pytest.raises(UnsupportedError, match="must be 1 under loss scaling"):
        scaling.apply([tf.ones((4, 4))], [keras.Variable(np.ones((4, 4)))])
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
    told = Exchange(model.trainable_variables).stats.last
    if hvd.size() > 1 and compression == "topk":
        assert [bucket.numel for bucket in told.buckets] == [150 + 600]
        assert told.dense_bytes == 4 * 35
    else:
        assert told is None
