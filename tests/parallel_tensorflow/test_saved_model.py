"""tf.saved_model.save saves the model for serving, but no training state of the process."""

from __future__ import annotations

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.compression import Layers
from hvd_sparse.tensorflow import TopK

INPUTS = tf.TensorSpec((8, 40))


class Model(tf.Module):
    """A model of one layer."""

    def __init__(self):
        super().__init__()
        self.weights = tf.Variable(tf.ones((40, 40)))

    @tf.function(input_signature=[INPUTS])
    def serve(self, inputs):
        return inputs @ self.weights


def train_of(model):
    @tf.function(input_signature=[INPUTS])
    def train(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(inputs @ model.weights))
        tape = hvd.DistributedGradientTape(
            tape, compression=TopK(density=0.05, layers=Layers(min_numel=64))
        )
        (average,) = tape.gradient(loss, [model.weights])
        model.weights.assign_sub(0.01 * average)

    return train


def test_a_model_is_saved_without_what_trains_it(tmp_path):
    model = Model()
    train, inputs = train_of(model), tf.ones(INPUTS.shape)
    train(inputs)
    tf.saved_model.save(model, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert np.array_equal(loaded.serve(inputs), model.serve(inputs))
    train(inputs)  # training continues
    assert not np.array_equal(loaded.serve(inputs), model.serve(inputs))


@pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")
def test_what_exchanges_is_not_saved_and_the_error_names_it(tmp_path):
    model = Model()
    model.train = train_of(model)
    model.train(tf.ones(INPUTS.shape))
    with pytest.raises((KeyError, AssertionError), match="hvd_sparse"):
        tf.saved_model.save(model, str(tmp_path / "model"))
