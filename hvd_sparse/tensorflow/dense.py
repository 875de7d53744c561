"""Gradients that Horovod sums for us: tensors, and rows that it gathers."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow import mpi_ops

from hvd_sparse.ranks.world import in_elastic_job
from hvd_sparse.tensorflow.settings import Settings

# What Horovod has no name for, and the type in which it travels instead.
_TRAVELS_AS = {tf.bfloat16: tf.float32}


class DenseReducer:
    """Allreduces gradients through Horovod.

    Args:
        prefix: Of the names of the operations; the same on all ranks, of no other exchange.
        settings: Horovod's arguments.
        process_set: Horovod's.
    """

    def __init__(self, prefix: str, settings: Settings, *, process_set: Any) -> None:
        self._prefix = prefix
        self._averages = settings.reduction.averages
        self._options = settings.reduction.of_horovod()
        self._process_set = process_set

    def allreduce(self, name: str, gradient: Any) -> Any:
        """The average of a tensor, or of the rows of IndexedSlices, in its own type."""
        if isinstance(gradient, tf.IndexedSlices):
            return self._gathered(name, gradient)
        # Not hvd.allreduce: in elastic jobs that asks for the number of ranks by a stateful
        # operation, TensorFlow runs such branches of a graph one after the other, and an average
        # that is exchanged may wait for the sum in a later one.
        result = mpi_ops._allreduce(
            tf.cast(gradient, _travels_as(gradient)), **self._named(name), **self._options
        )
        return tf.cast(result, gradient.dtype)

    def _gathered(self, name: str, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """The rows of all ranks; under names of our own, for a graph of another rank has others."""
        values = tf.cast(slices.values, _travels_as(slices))
        values = mpi_ops.allgather(values, **self._named(f"{name}.values"))
        indices = mpi_ops.allgather(slices.indices, **self._named(f"{name}.indices"))
        if self._averages:
            values = values / tf.cast(size_of(self._process_set), values.dtype)
        return tf.IndexedSlices(tf.cast(values, slices.dtype), indices, slices.dense_shape)

    def _named(self, name: str) -> dict[str, Any]:
        """What each of Horovod's operations is given."""
        return {
            "name": f"{self._prefix}.{name}".replace("/", "."),
            "ignore_name_scope": True,
            "process_set": self._process_set,
        }


def size_of(process_set: Any) -> Any:
    """The number of its ranks; in an elastic job a graph outlives it."""
    if in_elastic_job():
        return hvd.size_op(process_set.process_set_id)
    return process_set.size()


def _travels_as(gradient: Any) -> tf.DType:
    return _TRAVELS_AS.get(gradient.dtype, gradient.dtype)
