"""Measures how much selection leaves behind, in the steps that `quality_every` asks for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvd_sparse.stats.quality import BucketSample, Quality, UnitSample, quality_of
from hvd_sparse.torch.messages import Messages
from hvd_sparse.torch.sparse_bucket import SparseBucket


class QualityMeter:
    """Compares the accumulated values, summed over the ranks, with the applied ones."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def measure(self, buckets: Sequence[SparseBucket]) -> Quality | None:
        """Returns the quality of a committed step; None if it is not measured. Collective."""
        samples = [
            self._sample(bucket, bucket.accumulated)
            for bucket in buckets
            if bucket.accumulated is not None
        ]
        return quality_of(samples) if samples else None

    def _sample(self, bucket: SparseBucket, accumulated: torch.Tensor) -> BucketSample:
        layout, energy_here = bucket.layout, _energy(accumulated)  # before the sum in place
        total = self._messages.add_up(accumulated, f"quality.{layout.name}")()
        segments = list(layout.segments)
        units = zip(
            layout.units,
            torch.split(total, segments),
            torch.split(total - bucket.applied(), segments),
            bucket.ks,
            strict=True,
        )
        return BucketSample(
            undelivered_energy=_energy(bucket.residual),
            energy=energy_here,
            shares_residual=bucket.shares_residual,
            units=[
                UnitSample(
                    name=name,
                    undelivered_energy=_energy(left),
                    energy=_energy(unit_sum),
                    k=k,
                    numel=unit_sum.numel(),
                )
                for name, unit_sum, left, k in units
            ],
        )


def _energy(tensor: torch.Tensor) -> float:
    return float(tensor.double().square().sum())
