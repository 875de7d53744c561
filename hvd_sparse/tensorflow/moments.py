"""Averages what ranks that take local steps have besides weights: moments and statistics."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_sparse.tensorflow import compat
from hvd_sparse.tensorflow.dense import size_of


def average(variables: Sequence[Any], name: str, *, process_set: Any) -> None:
    """Replaces variables by their averages over the ranks, which Horovod sums. Collective.

    A variable that is the same on all ranks stays as it is, bit for bit. Values are divided before
    they are summed, in float32 at least, so that sums overflow only where averages do.

    Args:
        variables: Variables of floating-point numbers, the same ones on all ranks.
        name: The operations' name, the same on all ranks.
        process_set: Horovod's process set; ranks outside it change nothing.
    """
    if not variables or not process_set.included():
        return
    tensors = [tf.convert_to_tensor(compat.tensor_of(one)) for one in variables]
    digests = tf.numpy_function(_digests, tensors, tf.int64)
    row = tf.reshape(digests, (1, len(tensors)))
    rows = hvd.allgather(row, name=f"{name}.digests", process_set=process_set)
    is_equal = tf.unstack(tf.reduce_all(rows == row, axis=0), num=len(tensors))
    wide = max((compat.wide_type_of(one) for one in tensors), key=lambda dtype: dtype.size)
    flat = tf.concat([tf.reshape(tf.cast(one, wide), [-1]) for one in tensors], 0)
    shares = flat / tf.cast(size_of(process_set), wide)
    sums = hvd.allreduce(shares, op=hvd.Sum, name=name, process_set=process_set)
    parts = tf.split(sums, [math.prod(one.shape) for one in tensors])
    for variable, one, part, stays in zip(variables, tensors, parts, is_equal, strict=True):
        averaged = tf.cast(tf.reshape(part, one.shape), one.dtype)
        variable.assign(tf.where(stays, one, averaged))


def _digests(*arrays: NDArray[Any]) -> NDArray[Any]:
    digests = [hashlib.blake2b(one.tobytes(), digest_size=8).digest() for one in arrays]
    return np.frombuffer(b"".join(digests), np.int64)
