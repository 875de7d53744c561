"""Keras 2 in a process of its own, in place of Keras 3: weights are equal after fit."""

from __future__ import annotations

import importlib.util
import os

import pytest

if importlib.util.find_spec("tf_keras") is None or os.environ.get("TF_USE_LEGACY_KERAS") != "1":
    pytest.skip("needs tf_keras and TF_USE_LEGACY_KERAS=1", allow_module_level=True)

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

from hvd_sparse.tensorflow import LAGS, GTopK, TopK
from tests.parallel_tensorflow.ranks import assert_same_on_all_ranks


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("preset", [TopK, LAGS, GTopK])
def test_weights_are_bitwise_equal_after_fit(preset, eagerly, passes):
    keras = tf.keras
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.05, momentum=0.9),
        compression=preset(density=0.05, min_numel=64, adaptive=False),
        backward_passes_per_step=passes,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, run_eagerly=eagerly)
    rng = np.random.default_rng(100 + hvd.rank())
    images = rng.standard_normal((48, 8, 8, 1), np.float32)
    labels = rng.integers(0, 10, 48)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(images, labels, batch_size=12, epochs=2, verbose=0, callbacks=callbacks)
    assert_same_on_all_ranks(model.trainable_variables)
