"""The typed face of the core's step engine: runs the steps of an exchange on the calling thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from hvd_sparse import _core
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer


class Sample(NamedTuple):
    """A bucket's values in a measured step, in CPU memory: float32, flat.

    Attributes:
        bucket: Place among the buckets that `Steps` was given.
        accumulated: Residual plus gradients, before selection.
        left: The residual after the step.
        applied: The sum over the ranks that the gradients hold.
    """

    bucket: int
    accumulated: NDArray[Any]
    left: NDArray[Any]
    applied: NDArray[Any]


class Steps:
    """Takes the gradients of each step in any order, exchanges them, and commits the step.

    An op is a group of gradients that are handed over together. In each step: `begin`, `launch`
    once for each op, `summed` for each sum of the host's, `wait`, `commit`. Before `wait`,
    `commit_part` may wait for parts of the step and commit them alone. If anything raises in
    between, `abandon` ends the step.

    Args:
        exchange: The exchange. It has the buckets below and no others; closing it ends the steps.
        op_sizes: Elements and units of selection of each op's gradients. An op without units is
            always sent dense; it has a velocity, but no residual.
        buckets: The buckets of all ops, in starting order; the same on all ranks.
        rules: Rules of every step.

    Attributes:
        room: Elements of float32 scratch memory that a step needs.
    """

    def __init__(
        self,
        exchange: Exchange,
        op_sizes: Sequence[tuple[int, int]],
        buckets: Sequence[_core.DrivenBucket],
        rules: _core.StepRules,
    ) -> None:
        self._exchange = exchange
        self._engine = exchange.make_engine(op_sizes, buckets, rules)
        self.room = self._engine.room

    @property
    def _open_engine(self) -> _core.StepEngine:
        self._exchange.require_open()
        return self._engine

    @property
    def count(self) -> int:
        """Steps so far, refused ones included."""
        return self._engine.steps

    @property
    def came(self) -> list[float]:
        """Time at which each op of the last step was handed over, in seconds from the first."""
        return self._open_engine.came

    def replace(self, buckets: Sequence[_core.DrivenBucket]) -> None:
        """Replaces the buckets from the next step on; between two steps, on all ranks alike."""
        self._open_engine.replace(buckets)
        self.room = self._open_engine.room

    def reorder(self, order: Sequence[int]) -> None:
        """Changes the order of the buckets from the next step on, on all ranks alike."""
        self._open_engine.reorder(order)

    @property
    def pending(self) -> bool:
        """True if the residuals of ops that are sent dense may be added to the next gradients.

        All ranks have the same value. If it is false, these residuals hold rounding errors of the
        gradients' number type, which wait until the buckets are replaced. Read it between two
        steps, or once the exchange is closed.
        """
        return self._engine.pending

    @property
    def residual_norms(self) -> list[tuple[int, float]]:
        """Norms of this rank's residual, each with the number of steps after which it was noted.

        They are noted after 64, 128, 256 and so on steps, if a bucket is sparse then.
        """
        return self._open_engine.residual_norms

    def continue_after(self, steps: int, *, pending: bool = True) -> None:
        """Continues after `steps` steps, with replaced residuals, on all ranks alike.

        Args:
            steps: Number of steps so far.
            pending: The value of `pending` after those steps.
        """
        self._open_engine.continue_after(steps, pending)

    def begin(
        self,
        *,
        residual: Buffer,
        states: Buffer,
        velocity: Buffer | None = None,
        room: Buffer | None = None,
        loss_scale: float = 1.0,
        momentum: float = 0.0,
        dampening: float = 0.0,
        stream: int = 0,
    ) -> bool:
        """Begins a step on memory that must live until it is committed or abandoned.

        Args:
            residual: float32, as long as all gradients of the ops that have units of selection.
            states: The sparsifier's states, float32, [units of selection, 4], on the CPU.
            velocity: float32, as long as all gradients of the ops; None unless the rules say
                that there is one.
            room: float32, `room` elements; None if that is 0.
            momentum: Factor of the velocity before gradients are added to it, in [0, 1).
            dampening: Gradients are multiplied by 1 - dampening before they are added to the
                velocity, in [0, 1).
            loss_scale: Factor of this step's gradients; residual and velocity have none.
            stream: On a device, the stream from which the step comes, as a number.

        Returns:
            True if dense sums must be checked for values that are not finite, on all ranks alike: a
            sparse bucket, a residual or a velocity takes part in the step. Otherwise the host sums
            all gradients, and the ops need not be launched.

        Raises:
            ExchangeFailedError: The exchange has ended.
        """
        with self._exchange.acknowledging():
            return self._engine.begin(
                residual=residual,
                states=states,
                velocity=velocity,
                room=room,
                loss_scale=loss_scale,
                momentum=momentum,
                dampening=dampening,
                stream=stream,
            )

    def launch(
        self, op: int, gradients: Sequence[Buffer], decays: Sequence[float], *, stream: int = 0
    ) -> bool:
        """Hands over the gradients of an op; starts what is due, and waits for no other rank.

        Args:
            op: Number of the op.
            gradients: Its gradients, in order.
            decays: Factor of the residual, by gradient.
            stream: The stream given to `begin`.

        Returns:
            False if the gradients are exchanged: they belong to the exchange, and hold the result
            after `wait`. True if they are sent dense: they are the caller's again, and hold the sum
            of gradient, residual and velocity that the caller has to reduce.

        Raises:
            ExchangeFailedError: The exchange has ended.
        """
        with self._exchange.acknowledging():
            return self._engine.launch(op, gradients, decays, stream)

    def wait(self) -> tuple[_core.BucketStats, ...]:
        """Waits until the gradients of all ops that were launched hold their results.

        Returns:
            The statistics of each bucket that is exchanged.

        Raises:
            ExchangeFailedError: The exchange has ended; the residuals keep what was not applied.
        """
        with self._exchange.acknowledging():
            stats = self._engine.wait()
        if self._exchange.timeline is not None:
            self._exchange.timeline.exchanged(stats, waits=True)
        return tuple(stats)

    def summed(self, gradient: str, finite: bool) -> None:
        """Reports a sum that the host has formed, of a gradient that was sent dense.

        Args:
            gradient: The gradient's name.
            finite: False if the sum holds NaN or Inf: no rank applies it.
        """
        self._open_engine.summed(gradient, finite=finite)

    def commit_part(self, ops: Sequence[int]) -> None:
        """Waits for parts of the step, all of whose ops were launched, and commits them alone.

        On a device, work queued on the stream of the step from now on finds the gradients written.

        Args:
            ops: An op of each bucket of the part; or ops that are sent dense, whose sums were
                reported. Empty: the sums that were reported belong to no op.

        Raises:
            NonFiniteGradientError: On every rank alike, as in `commit`, for this part alone.
            ExchangeFailedError: The exchange has ended; the residuals keep what was not applied.
        """
        with self._exchange.acknowledging():
            self._engine.commit_part(ops)

    def commit(self) -> None:
        """Commits the step, all of whose ops were launched and waited for.

        Raises:
            NonFiniteGradientError: On every rank alike, for a gradient or sum that is not finite.
                Nothing was applied, and the residuals keep every finite entry of the gradients that
                were exchanged, but for those that let a sum overflow.
        """
        with self._exchange.acknowledging():
            self._engine.commit()

    def samples(self) -> list[Sample]:
        """Returns the samples of the committed step; none unless the rules measure it."""
        return [Sample(*one) for one in self._open_engine.samples()]

    def abandon(self) -> None:
        """Gives up the step of an exchange that has ended; its memory is then the caller's."""
        if not self._exchange.closed and not self._exchange.inherited:
            self._open_engine.abandon()
