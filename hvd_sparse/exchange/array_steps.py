"""Steps of single arrays, whose sizes and ks do not change."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_sparse import _core
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer


class ArraySteps:
    """Exchanges arrays by an engine of the core: each has a bucket, which is an op of its own.

    In each step: `begin`, `launch` once for each op, `wait`, `commit`; for a single array, `run`.
    No bucket of another engine is in flight meanwhile. An array of several gradients has all of
    them in its one bucket.

    Args:
        exchange: The exchange.
        *buckets: The buckets' numbers, in the order of their ops: the same on all ranks. In every
            step each rank sends `max_ks` entries of a bucket.
        output_scale: Factor of the sums.
        momentum: Factor of the velocity, in [0, 1); 0: there is none.
    """

    def __init__(
        self,
        exchange: Exchange,
        *buckets: int,
        output_scale: float = 1.0,
        momentum: float = 0.0,
    ) -> None:
        self._exchange = exchange
        self._momentum = momentum
        self._stream = 0
        added = [exchange.added(bucket) for bucket in buckets]
        self._engine = exchange.make_engine(
            [(one.numel, len(one.max_ks)) for one in added],
            [
                _core.DrivenBucket(
                    bucket, scale=1.0, output_scale=output_scale, ks=[(0, one.max_ks)], ops=1
                )
                for bucket, one in zip(buckets, added, strict=True)
            ],
            _core.StepRules(has_velocity=momentum != 0, device=added[0].device),
        )

    def begin(
        self, *, residual: Buffer, states: Buffer, velocity: Buffer | None = None, stream: int = 0
    ) -> None:
        """Begins a step on memory that must live until `commit`.

        residual = residual + gradient; the gradients are then overwritten with output_scale * (sum
        over the ranks of what was delivered). With a velocity, velocity = momentum * velocity +
        gradient is added to the residual instead, and becomes zero where this rank's entry was
        delivered.

        Args:
            residual: float32, as long as all arrays, in the order of the ops; updated.
            states: float32, [segments, 4]: the sparsifier's state of each segment; zeros at first,
                updated.
            velocity: float32, as long as the residual; updated. None without momentum.
            stream: On a device, the stream (a cudaStream_t, as a number) of whoever writes the
                arrays before, and reads them after. They are read after the work queued there,
                without blocking this thread.

        Raises:
            InvalidArgumentError: An argument does not fit; nothing has happened.
            ExchangeFailedError: The exchange has ended.
        """
        self._stream = stream
        with self._exchange.acknowledging():
            self._engine.begin(
                residual=residual,
                states=states,
                velocity=velocity,
                momentum=self._momentum,
                stream=stream,
            )

    def launch(self, op: int, gradients: Sequence[Buffer]) -> None:
        """Accumulates, selects and hands an array over; does not wait for other ranks.

        Raises:
            InvalidArgumentError: The gradients do not fit.
            ExchangeFailedError: The exchange has ended.
        """
        with self._exchange.acknowledging():
            self._engine.launch(op, gradients, [1.0] * len(gradients), self._stream)

    def wait(self) -> list[_core.BucketStats]:
        """Waits until the arrays have been written; returns the statistics of each bucket.

        Raises:
            ExchangeFailedError: The exchange has ended; the residuals keep what was not applied.
        """
        with self._exchange.acknowledging():
            stats = self._engine.wait()
        if self._exchange.timeline is not None:
            self._exchange.timeline.exchanged(stats, waits=True)
        return stats

    def commit(self) -> None:
        """Ends the step, whose ops were all launched and waited for.

        Raises:
            NonFiniteGradientError: On every rank alike, for a gradient or sum that is not finite.
                Nothing was applied, and the residuals keep every finite entry of the gradients, but
                for those that let a sum overflow.
        """
        with self._exchange.acknowledging():
            self._engine.commit()

    def run(
        self,
        gradients: Sequence[Buffer],
        *,
        residual: Buffer,
        states: Buffer,
        velocity: Buffer | None = None,
        stream: int = 0,
    ) -> _core.BucketStats:
        """Takes a whole step of a single array; see `begin`, `launch`, `wait` and `commit`."""
        self.begin(residual=residual, states=states, velocity=velocity, stream=stream)
        self.launch(0, gradients)
        (stats,) = self.wait()
        self.commit()
        return stats
