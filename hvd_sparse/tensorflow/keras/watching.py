"""Reports metrics of the gradient exchange while `fit` runs."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_sparse.compression.checks import checked_count
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.stats.metrics import PREFIX, ScalarWriter, Sink, metrics_of, sink_of
from hvd_sparse.tensorflow.user_exchange import Exchange


class WatchCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Reports the costs of steps, on the ranks that have this callback.

        callbacks = [WatchCallback(tf.summary.create_file_writer("runs/lags"))]

    Args:
        target: A writer of `tf.summary`, an object with PyTorch's `add_scalar`, or a function of
            the metrics, by name, and the step number. The metrics are those of
            `hvd_sparse.stats.metrics.metrics_of`, without the time of waiting: the graph waits.
        every: Number of steps between reports.

    Raises:
        InvalidArgumentError: `every` is not an integer above 0, or `target` is none of these.
    """

    def __init__(self, target: ScalarWriter | Sink | Any, *, every: int = 1) -> None:
        super().__init__()
        self._every = checked_count("every", every, low=1, high=2**62)
        if hasattr(target, "as_default"):
            self._sink = _summary_sink(target)
        elif callable(target) or hasattr(target, "add_scalar"):
            self._sink = sink_of(target)
        else:
            raise InvalidArgumentError(
                f"target must be a writer of summaries or a function, got {type(target).__name__}"
            )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called by Keras."""
        exchange = Exchange(self.model.optimizer)
        last = exchange.stats.last
        if last is not None and last.step % self._every == 0:
            self._sink(metrics_of(last, exchange.tuning), last.step)


def _summary_sink(writer: Any) -> Sink:
    # tf.summary.scalar does the same, but only where TensorBoard is installed.
    scalars = tf.compat.v1.SummaryMetadata()
    scalars.plugin_data.plugin_name = "scalars"

    def write(metrics: Any, step: int) -> None:
        with writer.as_default(step=step):
            for name, value in metrics.items():
                tf.summary.write(PREFIX + name, tf.cast(value, tf.float32), metadata=scalars)

    return write
