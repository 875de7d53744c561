"""Rescales the residual when the learning rate changes, so that late entries keep their weight.

See hvd_sparse/pytorch/learning_rates.py; here an optimizer has one rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class LearningRate:
    """The rate at which a residual was accumulated; a step with a rate of 0 does not change it.

    Attributes:
        last: The last rate above 0, a float32 scalar; 0 before the first.
    """

    def __init__(self, last: tf.Variable) -> None:
        self.last = last

    def decay(self, rate: Any, gradients: Sequence[Any]) -> tf.Tensor:
        """Returns the factor of the residual before gradients of this rate are added to it.

        The rate is stored once all gradients are ready. A step that fails before that leaves the
        residual unchanged; a step that is refused because of their values has multiplied it.

        Args:
            rate: The learning rate of this step, a scalar.
            gradients: The gradients of this step, tensors or IndexedSlices.
        """
        rate = tf.cast(rate, tf.float32)
        last = tf.identity(self.last)
        counts = rate > 0
        with tf.control_dependencies(tf.nest.flatten(list(gradients), expand_composites=True)):
            self.last.assign(tf.where(counts, rate, last))
        changed = tf.logical_and(counts, last > 0)
        return tf.where(changed, last / tf.where(counts, rate, 1.0), 1.0)
