"""Gradients that Horovod sums for us, dense."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow import mpi_ops

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
        self._options = {**settings.reduction.of_horovod(), "process_set": process_set}

    def allreduce(self, name: str, gradient: Any) -> Any:
        """The average of a tensor, in its own type; IndexedSlices are gathered."""
        if isinstance(gradient, tf.IndexedSlices):
            options = {key: self._options[key] for key in ("op", "process_set")}
            return hvd.allreduce(gradient, **options)
        travels_as = _TRAVELS_AS.get(gradient.dtype, gradient.dtype)
        # Not hvd.allreduce: in elastic jobs that asks for the number of ranks by a stateful
        # operation, TensorFlow runs such branches of a graph one after the other, and an average
        # that is exchanged may wait for the sum in a later one.
        result = mpi_ops._allreduce(
            tf.cast(gradient, travels_as),
            name=f"{self._prefix}.{name}".replace("/", "."),
            ignore_name_scope=True,
            **self._options,
        )
        return tf.cast(result, gradient.dtype)
