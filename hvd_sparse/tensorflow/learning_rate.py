"""The residual follows the learning rate, so that what is sent late counts as when it was computed.

See hvd_sparse/torch/learning_rates.py; here an optimizer has one rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class LearningRate:
    """The rate at which a residual was accumulated; one of 0 changes nothing.

    Attributes:
        last: float32, a scalar: the last rate above 0; 0 before the first.
    """

    def __init__(self, last: tf.Variable) -> None:
        self.last = last

    def decay(self, rate: Any, gradients: Sequence[Any]) -> tf.Tensor:
        """What to multiply the residual by before gradients of this rate are added to it.

        The rate is noted once all gradients are there, and travel. A step that fails before that
        leaves the residual as it is; one that is refused for what they hold has multiplied it.

        Args:
            rate: A scalar.
            gradients: Tensors or IndexedSlices.
        """
        rate = tf.cast(rate, tf.float32)
        last = tf.identity(self.last)
        counts = rate > 0
        with tf.control_dependencies(tf.nest.flatten(list(gradients), expand_composites=True)):
            self.last.assign(tf.where(counts, rate, last))
        changed = tf.logical_and(counts, last > 0)
        return tf.where(changed, last / tf.where(counts, rate, 1.0), 1.0)
