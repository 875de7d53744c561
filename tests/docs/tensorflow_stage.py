"""Objects that the documentation's code for TensorFlow and Keras assumes; setups import them."""

from __future__ import annotations

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

INPUTS, CLASSES = 64, 10

loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def small_model() -> keras.Model:
    """Returns a model of two sparse layers and two dense biases, the same on all ranks."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((INPUTS,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(CLASSES)]
    )


def batch(size: int = 8) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns inputs and labels, which differ by rank."""
    random = tf.random.Generator.from_seed(hvd.rank())
    inputs = random.normal((size, INPUTS))
    return inputs, random.uniform((size,), maxval=CLASSES, dtype=tf.int32)
