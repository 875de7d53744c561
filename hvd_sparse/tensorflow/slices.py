"""Gradients as IndexedSlices, which are gathered; the number of rows differs between ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def as_slices(gradient: Any, shape: tuple[int, ...], dtype: tf.DType) -> tf.IndexedSlices:
    """Returns a gradient as IndexedSlices, as needed on all ranks if one rank's is IndexedSlices.

    Args:
        gradient: IndexedSlices, a tensor, or None, which gives no rows.
        shape: The variable's shape.
        dtype: The variable's type.

    Returns:
        IndexedSlices with values of that type and int64 indices.
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
