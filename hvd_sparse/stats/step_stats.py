"""Cost of exchanging an optimizer's gradients, as seen by this rank."""

from __future__ import annotations

from dataclasses import dataclass, field

from hvd_sparse._core import BucketStats
from hvd_sparse.stats.quality import Quality


@dataclass(frozen=True, kw_only=True)
class StepStats:
    """Statistics of one step.

    Attributes:
        step: Number of steps of this optimizer before this one.
        buckets: Statistics of each sparse bucket: density asked and reached, bytes, seconds.
        dense_bytes: Bytes of the gradients that the host summed (what a rank sends of them
            depends on the host's algorithm: 2 (P - 1) / P times as much in a ring).
        wait_seconds: Time that synchronize() really waited for other ranks; nan in TensorFlow,
            where the graph waits, and other operations run meanwhile.
        transport: Transport of the sparse buckets, "mpi" or "tcp".
        quality: Quality of the selection, in a step in which quality_every asks for it.
    """

    step: int
    buckets: tuple[BucketStats, ...] = ()
    dense_bytes: int = 0
    wait_seconds: float = 0.0
    transport: str
    quality: Quality | None = None

    @property
    def bytes_sent(self) -> int:
        """Bytes of sparse blocks that this rank sent, headers included."""
        return sum(bucket.bytes_sent for bucket in self.buckets)

    @property
    def bytes_received(self) -> int:
        """Bytes of sparse blocks that this rank received, headers included."""
        return sum(bucket.bytes_received for bucket in self.buckets)

    @property
    def density_asked(self) -> float:
        """Fraction of the sparse buckets' entries that was asked for."""
        return _fraction(sum(b.asked for b in self.buckets), sum(b.numel for b in self.buckets))

    @property
    def density_reached(self) -> float:
        """Fraction of the sparse buckets' entries that this rank selected."""
        return _fraction(sum(b.selected for b in self.buckets), sum(b.numel for b in self.buckets))

    @property
    def averaged(self) -> int:
        """Entries that this rank has averaged for all, by a rule that bears bad ranks."""
        return sum(bucket.averaged for bucket in self.buckets)

    @property
    def left_out(self) -> tuple[int, ...]:
        """By rank, how many of these entries its values did not go into; () without a rule."""
        each = [bucket.left_out for bucket in self.buckets if bucket.left_out]
        return tuple(map(sum, zip(*each, strict=True)))

    @property
    def select_seconds(self) -> float:
        """Seconds spent on accumulating and selecting."""
        return sum(bucket.select_seconds for bucket in self.buckets)

    @property
    def exchange_seconds(self) -> float:
        """Seconds spent on exchanging, settling and scattering; backward hides most of it."""
        return sum(bucket.exchange_seconds for bucket in self.buckets)


@dataclass(frozen=True, kw_only=True)
class TotalStats:
    """Sums over all steps so far; the other attributes are those of StepStats.

    Attributes:
        steps: Number of steps.
        sparse_steps: Number of steps with at least one sparse bucket.
        averaged: Like left_out, of the steps since the number of ranks last changed.
    """

    steps: int = 0
    sparse_steps: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    dense_bytes: int = 0
    select_seconds: float = 0.0
    exchange_seconds: float = 0.0
    wait_seconds: float = 0.0
    averaged: int = 0
    left_out: tuple[int, ...] = ()

    def plus(self, step: StepStats) -> TotalStats:
        """Returns the sums with one more step added."""
        left_out, same_ranks = step.left_out, len(step.left_out) == len(self.left_out)
        if same_ranks:
            left_out = tuple(map(sum, zip(left_out, self.left_out, strict=True)))
        return TotalStats(
            steps=self.steps + 1,
            sparse_steps=self.sparse_steps + bool(step.buckets),
            bytes_sent=self.bytes_sent + step.bytes_sent,
            bytes_received=self.bytes_received + step.bytes_received,
            dense_bytes=self.dense_bytes + step.dense_bytes,
            select_seconds=self.select_seconds + step.select_seconds,
            exchange_seconds=self.exchange_seconds + step.exchange_seconds,
            wait_seconds=self.wait_seconds + step.wait_seconds,
            averaged=step.averaged + (self.averaged if same_ranks else 0),
            left_out=left_out,
        )


@dataclass(frozen=True, kw_only=True)
class Stats:
    """What `exchange.stats` has.

    Attributes:
        last: The last step that was exchanged, or None before the first (and always if there is
            nothing to exchange: one rank, or a rank outside the process set).
        total: Sums over all steps. In TensorFlow, an exchange none of whose gradients is large
            enough to be sent sparse counts no steps.
    """

    last: StepStats | None = None
    total: TotalStats = field(default_factory=TotalStats)


def _fraction(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
