"""What code of the documentation takes for granted, for TensorFlow and Keras: setups import it."""

from __future__ import annotations

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

INPUTS, CLASSES = 64, 10

loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def small_model() -> keras.Model:
    """The same on all ranks: two layers that travel sparse, two biases that do not."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((INPUTS,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(CLASSES)]
    )


def batch(size: int = 8) -> tuple[tf.Tensor, tf.Tensor]:
    """Inputs and labels, others on every rank."""
    random = tf.random.Generator.from_seed(hvd.rank())
    inputs = random.normal((size, INPUTS))
    return inputs, random.uniform((size,), maxval=CLASSES, dtype=tf.int32)
