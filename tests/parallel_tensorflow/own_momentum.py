"""Models whose optimizer's own momentum may be moved, for the tests of momentum in Keras 3.

With m = 1/2 and integers all sums are exact for some steps.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest

import hvd_sparse.tensorflow.keras as hvd
from hvd_sparse.compression import Layers
from hvd_sparse.tensorflow import TopK
from hvd_sparse.tensorflow.registry import find_exchange
from tests.parallel_tensorflow.ranks import integer_gradients, total

DENSE = TopK(layers=Layers(min_numel=10**6))  # all gradients are sent dense, with a velocity
SPARSE = TopK(density=0.25, layers=Layers(min_numel=64))
M = 0.5
SHAPES = {"kernel": (40, 30), "bias": (7,)}

several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="a single rank moves nothing")


def make_variables(shapes=SHAPES):
    return [keras.Variable(np.zeros(shape, np.float32), name=n) for n, shape in shapes.items()]


def gradients_of(variables, step):
    return integer_gradients([one.value for one in variables], step)


def summed(gradients):
    """Returns the sums over the ranks."""
    return [total(one).reshape(one.shape) for one in gradients]


def velocities_of(target):
    exchange = find_exchange(target)
    return {} if exchange is None else {n: v.numpy() for n, v in exchange.velocities().items()}


def make_model(optimizer, **compiled):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((20,)), keras.layers.Dense(30, activation="tanh"), keras.layers.Dense(5)]
    )
    model.compile(optimizer=optimizer, loss="mse", **compiled)
    return model


def fit(model, steps=5, **options):
    rng = np.random.default_rng(hvd.rank())
    x, y = rng.standard_normal((4 * steps, 20)), rng.standard_normal((4 * steps, 5))
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, **options)
    return [one.numpy() for one in model.trainable_variables]
