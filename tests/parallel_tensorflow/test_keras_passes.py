"""Keras 3's backward_passes_per_step: gradients add up over passes, then are exchanged once."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse.tensorflow.keras as hvd
from hvd_sparse.compression import Layers
from hvd_sparse.errors import UnsupportedError
from hvd_sparse.tensorflow import TopK
from tests.cases import in_turn

COMPRESSIONS = {
    "none": hvd.Compression.none,
    "topk": TopK(density=0.05, layers=Layers(min_numel=64)),
}


@pytest.mark.parametrize(
    ("compression", "averages", "traced"),
    in_turn(["none", "topk"], [False, True], [False, True]),
)
def test_gradients_of_several_passes_are_exchanged_once(compression, averages, traced):
    variable = keras.Variable(np.zeros((40, 30), np.float32), name="w")
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0),
        compression=COMPRESSIONS[compression],
        op=hvd.Sum,
        backward_passes_per_step=2,
        average_aggregated_gradients=averages,
    )
    mode = tf.function if traced else lambda step: step
    step = mode(lambda gradient: optimizer.apply([gradient], [variable]))
    owed = np.zeros((40, 30))
    for number in range(6):
        before = variable.numpy()
        rng = np.random.default_rng(10 * number + hvd.rank())
        gradient = rng.integers(-9, 10, (40, 30)).astype(np.float32)
        owed += gradient / (2 if averages else 1)
        step(tf.constant(gradient))
        assert np.array_equal(before, variable.numpy()) == (number % 2 == 0)
    if compression == "topk" and hvd.size() > 1:
        assert optimizer.exchange.stats.last.step == 2
        owed -= optimizer.exchange.residual_variables[0].numpy().reshape(40, 30)
    expected = hvd.allreduce(tf.constant(owed), op=hvd.Sum, name="owed").numpy()
    assert np.array_equal(-variable.numpy(), expected)
    assert int(optimizer.iterations) == 3


def two_variables_in_two_passes(compression):
    """Returns a function that accumulates variables' gradients, and two variables of one shape."""
    both = {name: keras.Variable(np.zeros((40, 30), np.float32), name=name) for name in "ab"}
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0),
        compression=compression,
        op=hvd.Sum,
        backward_passes_per_step=2,
    )
    optimizer.build(list(both.values()))

    def add(names, step):
        rng = np.random.default_rng(10 * step + hvd.rank())
        gradients = {n: rng.integers(-9, 10, (40, 30)).astype(np.float32) for n in "ab"}
        optimizer.apply([tf.constant(gradients[n]) for n in names], [both[n] for n in names])
        return gradients

    return add, both


@pytest.mark.parametrize(
    "compression", [hvd.Compression.none, TopK(density=1.0, layers=Layers(min_numel=64))]
)
def test_passes_over_variables_in_another_order_add_up_by_variable(compression):
    add, both = two_variables_in_two_passes(compression)
    owed = dict.fromkeys("ab", 0.0)
    for step, names in enumerate(["ab", "ba", "ba", "ba"]):
        for name, gradient in add(names, step).items():
            owed[name] = owed[name] + gradient
    for name, variable in both.items():
        expected = hvd.allreduce(tf.constant(owed[name]), op=hvd.Sum, name=f"owed.{name}").numpy()
        assert np.array_equal(-variable.numpy(), expected), name


def test_passes_over_other_variables_are_refused():
    add, both = two_variables_in_two_passes(TopK(density=1.0, layers=Layers(min_numel=64)))
    add("ab", 0)
    for names in ("aa", "a"):
        with pytest.raises(UnsupportedError, match="must be over the same variables"):
            add(names, 1)
    assert not any(np.any(variable.numpy()) for variable in both.values())
