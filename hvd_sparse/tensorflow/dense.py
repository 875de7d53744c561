"""The gradients that Horovod exchanges: dense tensors, and IndexedSlices, which it gathers."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow import mpi_ops

from hvd_sparse.ranks.world import in_elastic_job
from hvd_sparse.tensorflow.settings import Settings

# The types that Horovod lacks, each with the type in which it is sent.
_SENT_AS = {tf.bfloat16: tf.float32}


class DenseReducer:
    """Allreduces gradients through Horovod.

    Args:
        prefix: Prefix of the operations' names, unique to the exchange, the same on all ranks.
        settings: The user's settings.
        process_set: Horovod's process set.
    """

    def __init__(self, prefix: str, settings: Settings, *, process_set: Any) -> None:
        self._prefix = prefix
        self._averages = settings.reduction.averages
        self._options = settings.reduction.of_horovod(hvd)
        self._process_set = process_set

    def allreduce(self, name: str, gradient: Any) -> Any:
        """Returns the average of a tensor, or of the rows of IndexedSlices, in its own type."""
        if isinstance(gradient, tf.IndexedSlices):
            return self._gathered(name, gradient)
        # Not hvd.allreduce: in elastic jobs it reads the number of ranks with a stateful op, and
        # TensorFlow runs branches with stateful ops one after the other. A gradient that is
        # sent sparse may wait for the sum in a later branch.
        result = mpi_ops._allreduce(
            tf.cast(gradient, _sent_as(gradient)), **self._named(name), **self._options
        )
        return tf.cast(result, gradient.dtype)

    def _gathered(self, name: str, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """Gathers all ranks' rows, under names of our own: default names differ between graphs."""
        values = tf.cast(slices.values, _sent_as(slices))
        values = mpi_ops.allgather(values, **self._named(f"{name}.values"))
        indices = mpi_ops.allgather(slices.indices, **self._named(f"{name}.indices"))
        if self._averages:
            values = values / tf.cast(size_of(self._process_set), values.dtype)
        return tf.IndexedSlices(tf.cast(values, slices.dtype), indices, slices.dense_shape)

    def _named(self, name: str) -> dict[str, Any]:
        """Returns the arguments that all of Horovod's operations get."""
        return {
            "name": f"{self._prefix}.{name}".replace("/", "."),
            "ignore_name_scope": True,
            "process_set": self._process_set,
        }


def size_of(process_set: Any) -> Any:
    """Returns the number of ranks: an op in an elastic job, where it changes under a graph."""
    if in_elastic_job():
        return hvd.size_op(process_set.process_set_id)
    return process_set.size()


def _sent_as(gradient: Any) -> tf.DType:
    return _SENT_AS.get(gradient.dtype, gradient.dtype)
