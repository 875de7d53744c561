"""Gradients of a variable's rows, which are gathered: each rank has as many rows as it has."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def as_slices(gradient: Any, shape: tuple[int, ...], dtype: tf.DType) -> tf.IndexedSlices:
    """A gradient as rows, of which there may be none: what is sliced on one rank is so on all.

    Args:
        gradient: IndexedSlices, a tensor, or None.
        shape: Of the variable.
        dtype: Likewise.

    Returns:
        Values of that type, and int64 indices.
    """
    if gradient is None:
        values, indices = tf.zeros((0, *shape[1:]), dtype), tf.zeros((0,), tf.int64)
    elif isinstance(gradient, tf.IndexedSlices):
        values, indices = gradient.values, gradient.indices
    else:
        values, indices = tf.reshape(gradient, shape), tf.range(shape[0], dtype=tf.int64)
    return tf.IndexedSlices(
        tf.cast(values, dtype), tf.cast(indices, tf.int64), tf.constant(shape, tf.int64)
    )
