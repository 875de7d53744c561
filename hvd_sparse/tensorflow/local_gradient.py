"""Clips a rank's own gradient and adds weight decay; see hvd_sparse/exchange/local_share.py."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_sparse.exchange.local_share import LocalShare
from hvd_sparse.tensorflow import compat
from hvd_sparse.tensorflow.graph_state import GraphState


class LocalGradient:
    """Clips gradients and adds weight decay as the compression asks, in eager mode and in graphs.

    Args:
        share: This rank's share.
        graph: The graph state that holds limit and decay, which depend on the number of ranks and
            change with the next exchange.
    """

    def __init__(self, share: LocalShare, graph: GraphState) -> None:
        self._limit: tf.Variable | None = None
        self._decay: tf.Variable | None = None
        if share.limit is not None:
            self._limit = graph.variable("limit", (), tf.float64)
            self._limit.assign(share.limit)
        if share.decay:
            self._decay = graph.variable("decay", (), tf.float64)
            self._decay.assign(share.decay)

    def prepare(self, gradient: tf.Tensor, variable: Any) -> tf.Tensor:
        """Returns the gradient, clipped and with weight decay, in its own type.

        Args:
            gradient: A tensor; zeros if the variable has no gradient in this step.
            variable: The gradient's variable.
        """
        if self._limit is not None:
            gradient = _clipped(gradient, tf.convert_to_tensor(self._limit))
        if self._decay is not None:
            wide = _wide(gradient.dtype)
            weights = tf.cast(tf.convert_to_tensor(compat.tensor_of(variable)), wide)
            decay = tf.cast(tf.convert_to_tensor(self._decay), wide) * weights
            gradient = tf.cast(tf.cast(gradient, wide) + decay, gradient.dtype)
        return gradient


def _clipped(gradient: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    """Clips to a norm; entries that are not finite do not count in the norm and are unchanged."""
    wide = tf.cast(gradient, _wide(gradient.dtype))
    norm = tf.cast(tf.norm(wide), tf.float64)

    def of_the_rest() -> tf.Tensor:
        finite = tf.where(tf.math.is_finite(wide), wide, tf.zeros_like(wide))
        return tf.norm(tf.cast(finite, tf.float64))

    norm = tf.cond(tf.math.is_finite(norm), lambda: norm, of_the_rest)
    factor = tf.cast(tf.where(norm > limit, limit / norm, 1.0), wide.dtype)
    return tf.cast(factor * wide, gradient.dtype)


def _wide(dtype: tf.DType) -> tf.DType:
    return dtype if dtype == tf.float64 else tf.float32
