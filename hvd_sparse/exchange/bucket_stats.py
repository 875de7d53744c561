"""Statistics of one bucket in one step."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse import _core


@dataclass(frozen=True)
class BucketStats:
    """Statistics of one bucket in one step, on this rank.

    Attributes:
        bucket: Bucket name.
        step: Number of steps of this bucket before this one.
        numel: Entries of the bucket.
        asked: Entries asked for (the sum of k over its segments).
        selected: Entries that this rank selected.
        reduced: Entries of the sum, the same on every rank.
        bytes_sent: Bytes that this rank sent, as coded, headers included.
        bytes_received: Bytes that this rank received.
        select_seconds: Seconds to accumulate and select.
        exchange_seconds: Seconds to exchange, settle and scatter.
        route: "calls" (call by call, blocks in CPU memory), "device rounds" (call by call, but a
            collective's rounds go from GPU to GPU) or "device step" (the whole step was queued on a
            GPU at once); see docs/cuda.md.
    """

    bucket: str
    step: int
    numel: int
    asked: int
    selected: int
    reduced: int
    bytes_sent: int
    bytes_received: int
    select_seconds: float
    exchange_seconds: float
    route: str = "calls"

    @classmethod
    def of(cls, bucket: str, stats: _core.BucketStats) -> BucketStats:
        """Converts the core's statistics of a bucket of that name."""
        return cls(
            bucket=bucket,
            step=stats.step,
            numel=stats.numel,
            asked=stats.asked,
            selected=stats.selected,
            reduced=stats.reduced,
            bytes_sent=stats.bytes_sent,
            bytes_received=stats.bytes_received,
            select_seconds=stats.select_seconds,
            exchange_seconds=stats.exchange_seconds,
            route=stats.route,
        )

    @property
    def density_asked(self) -> float:
        """Fraction of the entries asked for."""
        return self.asked / self.numel if self.numel else 0.0

    @property
    def density_reached(self) -> float:
        """Fraction of the entries that this rank selected."""
        return self.selected / self.numel if self.numel else 0.0
