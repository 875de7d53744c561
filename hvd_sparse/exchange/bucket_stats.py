"""What an exchange tells of one bucket and step."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse import _core


@dataclass(frozen=True)
class BucketStats:
    """What became of one bucket in one step, on this rank.

    Attributes:
        bucket: Its name.
        step: Steps of this bucket before this one.
        numel: Entries of the bucket.
        asked: Entries asked for (the sum of k over its segments).
        selected: Entries that this rank selected.
        reduced: Entries of the sum, the same on every rank.
        bytes_sent: By this rank, as coded, headers included.
        bytes_received: By this rank.
        select_seconds: Accumulating and selecting.
        exchange_seconds: Exchanging, settling and scattering.
        route: Where that happened: "calls" (call by call, blocks in memory of the CPU), "device
            rounds" (the same, but a collective's rounds go from GPU to GPU) or "device step" (a GPU
            was given all of it at once); see docs/cuda.md.
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
        """What the core says of a bucket of that name."""
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
