"""A step that finds no more data sends nothing, and leaves the residuals unchanged."""

from __future__ import annotations

import time

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse.tensorflow.keras as hvd_keras
from hvd_sparse.compression import Layers
from hvd_sparse.tensorflow import LAGS, Exchange, TopK
from tests.cases import in_turn
from tests.parallel_tensorflow.ranks import assert_same_on_all_ranks

PIECES = {
    "density": 0.05,
    "layers": Layers(min_numel=64, bucket_numel=256),
}  # one bucket for each variable
COMPRESSIONS = {
    "topk": TopK(**PIECES),
    "fixed": LAGS(adaptive=False, **PIECES),
    "lags": LAGS(**PIECES),
}
alone = pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")


def slow_to_end(steps, shape=()):
    """Returns data of unknown size: ops that do not wait for it are long done at its end."""

    def batches():
        for number in range(steps):
            yield np.full(shape, number + 1.0, np.float32)
        time.sleep(0.2)

    return tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec(shape))


def averages_of(data, variables, compression):
    """Returns averages of gradients; the second is missing, and the third needs no data."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variables[0]) * data + tf.reduce_sum(variables[2])
    tape = hvd.DistributedGradientTape(tape, compression=compression, op=hvd.Sum)
    return tape.gradient(loss, variables)


def in_one_graph(step):
    return tf.function(lambda data: step(next(data)))


def in_an_inner_function(step):
    inner = tf.function(step)
    return tf.function(lambda data: inner(next(data)), autograph=False)


def in_a_loop(step):
    @tf.function
    def twice(data):
        result = tf.zeros((16, 16))
        for _ in tf.range(1):
            result = step(next(data))
        return result

    return twice


def in_a_branch(step):
    @tf.function
    def perhaps(data, really):
        result, batch = tf.zeros((16, 16)), next(data)
        if really:
            result = step(batch)
        return result

    return lambda data: perhaps(data, tf.constant(True))


WAYS = {
    "graph": in_one_graph,
    "function": in_an_inner_function,
    "loop": in_a_loop,
    "branch": in_a_branch,
}


@alone
@pytest.mark.parametrize(("way", "compression"), in_turn(WAYS, list(COMPRESSIONS)))
def test_a_step_without_data_does_not_begin(way, compression):
    variables = [tf.Variable(tf.zeros((16, 16))) for _ in range(3)]

    def step(data):
        return tf.add_n(averages_of(data, variables, COMPRESSIONS[compression]))

    train = WAYS[way](step)
    for _ in range(2):
        data = iter(slow_to_end(2))
        for _ in range(2):
            assert_same_on_all_ranks([train(data)])
        with pytest.raises(tf.errors.OutOfRangeError):
            train(data)
    assert Exchange(variables).stats.last.step == 3


class Two(keras.Model):
    """A model of two heads: one has a loss, the other has gradients of noise, or none."""

    def __init__(self, noise):
        super().__init__()
        self.main, self.other = keras.layers.Dense(16), keras.layers.Dense(16)
        self.noise = noise

    def call(self, x):
        return self.main(x), self.other(x)

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self(x)[0])
            if self.noise:
                loss += tf.reduce_sum(self.other(tf.random.normal((4, 16))))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


@alone
@pytest.mark.parametrize(
    ("compression", "noise", "passes", "steps"),
    [("topk", False, 1, 1), ("fixed", True, 1, 1), ("topk", True, 2, 1), ("topk", False, 1, 3)],
)
def test_fit_goes_on_after_each_end_of_data_of_unknown_length(compression, noise, passes, steps):
    model = Two(noise)
    optimizer = hvd_keras.DistributedOptimizer(
        keras.optimizers.SGD(0.01),
        compression=COMPRESSIONS[compression],
        backward_passes_per_step=passes,
    )
    model.compile(optimizer, steps_per_execution=steps, jit_compile=False)
    callbacks = [hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(slow_to_end(4, (4, 16)), epochs=3, verbose=0, callbacks=callbacks)
    assert optimizer.exchange.stats.last.step == 12 // passes - 1
    assert_same_on_all_ranks([v.value for v in model.trainable_variables])


def checked(data):
    """Takes some time to find that the data are bad."""
    if data < 0:
        time.sleep(0.2)
        raise ValueError("bad data")
    return data


@alone
@pytest.mark.parametrize("fails", ["no data", "bad data"])
@pytest.mark.parametrize("way", WAYS)
def test_a_new_rate_counts_from_the_first_step_that_has_gradients(way, fails):
    compression = TopK(density=0.02, layers=Layers(min_numel=1))
    values = tf.reshape(tf.range(256.0), (16, 16))
    variable, rate = tf.Variable(tf.zeros((16, 16))), tf.Variable(1.0)

    def step(data):
        factor = tf.ensure_shape(tf.numpy_function(checked, [data], tf.float32), ())
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * values * factor)
        tape = hvd.DistributedGradientTape(
            tape, compression=compression, op=hvd.Sum, learning_rate=rate
        )
        return tape.gradient(loss, [variable])[0]

    train = WAYS[way](step)
    data = iter(slow_to_end(1))
    train(data)
    residual, _, last = Exchange([variable]).residual_variables
    owed = residual.numpy().sum()
    rate.assign(0.5)
    if fails == "bad data":
        data = iter(tf.data.Dataset.from_tensors(-1.0))
    with pytest.raises(tf.errors.OpError, match=r"bad data|End of sequence"):
        train(data)
    assert last.numpy() == 1.0
    sent = train(iter(tf.data.Dataset.from_tensors(0.0)))
    assert last.numpy() == 0.5
    assert residual.numpy().sum() + np.sum(sent) / hvd.size() == 2 * owed


@alone
@pytest.mark.parametrize("mode", [lambda step: step, tf.function], ids=["eager", "graph"])
def test_a_new_rate_counts_in_a_step_that_is_refused(mode):
    variable, rate = tf.Variable(tf.zeros((16, 16))), tf.Variable(1.0)

    @mode
    def step(gradient):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * gradient)
        compression = TopK(density=0.02, layers=Layers(min_numel=1))
        tape = hvd.DistributedGradientTape(
            tape, compression=compression, op=hvd.Sum, learning_rate=rate
        )
        return tape.gradient(loss, [variable])[0]

    step(tf.reshape(tf.range(256.0), (16, 16)))
    residual, _, last = Exchange([variable]).residual_variables
    owed = residual.numpy().sum()
    rate.assign(0.5)
    bad = tf.fill((16, 16), np.float32("nan" if hvd.rank() == 0 else 0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="NaN or Inf"):
        step(bad)
    assert (last.numpy(), residual.numpy().sum()) == (0.5, 2 * owed)
