"""Keras's optimizers either work with averages that are mostly zero, or are refused."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse.tensorflow.keras as hvd
from hvd_sparse.compression import Layers
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.tensorflow import TopK, prepare
from tests.parallel_tensorflow.ranks import assert_same_on_all_ranks, integer_gradients

COMPRESSION = TopK(density=0.002, layers=Layers(min_numel=64))
LEAST = {"Adafactor": {"epsilon_1": 1e-15}}


def optimizer_names():
    """Returns the names of all optimizers except those that wrap others."""
    others = ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
    kinds = inspect.getmembers(keras.optimizers, inspect.isclass)
    return [
        name
        for name, kind in kinds
        if issubclass(kind, keras.optimizers.Optimizer) and name not in others
    ]


def applied(optimizer, gradients_of):
    """Returns a variable's value after some steps."""
    variable = keras.Variable(np.full((40, 30), 0.5, np.float32))
    step = tf.function(lambda gradients: optimizer.apply(gradients, [variable]))
    optimizer.build([variable])
    for number in range(4):
        step(gradients_of(variable, number))
    return variable.numpy()


@pytest.mark.parametrize("name", optimizer_names())
def test_rows_and_columns_of_zeros_give_finite_weights(name):
    def make():
        return getattr(keras.optimizers, name)(**LEAST.get(name, {}))

    def gradients_of(variable, number):
        return integer_gradients([variable], number)

    try:
        applied(make(), gradients_of)
    except AttributeError as error:  # Keras 3.12's Muon needs the path of a tf.Variable
        pytest.skip(f"Keras {keras.__version__} alone cannot apply {name}: {error}")
    optimizer = hvd.DistributedOptimizer(make(), compression=COMPRESSION)
    weights = applied(optimizer, gradients_of)
    assert np.all(np.isfinite(weights))
    assert np.any(weights != 0.5)
    assert_same_on_all_ranks([weights])


def test_an_adafactor_that_divides_zero_by_zero_is_refused():
    def one_entry(*_):
        return [tf.scatter_nd([[1, 2]], [3.0], (40, 30))]

    assert np.all(np.isnan(applied(keras.optimizers.Adafactor(), one_entry)))  # Keras's own too
    assert np.all(np.isfinite(applied(keras.optimizers.Adafactor(epsilon_1=1e-15), one_entry)))
    adafactor = keras.optimizers.Adafactor
    variables = [keras.Variable(np.ones((40, 30)))]
    optimizers = [adafactor(), keras.optimizers.LossScaleOptimizer(adafactor())]
    if hasattr(keras.optimizers, "MultiOptimizer"):  # newer than Keras 3.12
        several = keras.optimizers.OptimizerMap(keras.optimizers.SGD(), {"dense": adafactor()})
        optimizers.append(keras.optimizers.MultiOptimizer(several))
    for optimizer in optimizers:
        with pytest.raises(InvalidArgumentError, match=r"at least 1e-15 with .* got 1e-30"):
            hvd.DistributedOptimizer(optimizer, compression=COMPRESSION)
        with pytest.raises(InvalidArgumentError, match="epsilon_1 of Adafactor must be at least"):
            prepare(variables, COMPRESSION, optimizer=optimizer)
    for harmless in (hvd.Compression.none, hvd.Dense(values="bfloat16")):
        hvd.DistributedOptimizer(adafactor(), compression=harmless)
    with pytest.raises(InvalidArgumentError, match="epsilon_1 of Adafactor"):
        hvd.DistributedOptimizer(adafactor(), compression=hvd.Dense(values="int4"))
