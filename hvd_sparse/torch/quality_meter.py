"""Measures what selection leaves behind, in the steps in which a compression asks for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvd_sparse.quality import Quality, delta, share_left
from hvd_sparse.torch.messages import Messages
from hvd_sparse.torch.sparse_bucket import SparseBucket


class QualityMeter:
    """Compares what was accumulated with what was applied. It sums the former over the ranks."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def measure(self, buckets: Sequence[SparseBucket]) -> Quality | None:
        """Of a step that was committed; None if it was not to be measured. Collective."""
        measured = [(one, one.accumulated) for one in buckets if one.accumulated is not None]
        if not measured:
            return None
        left = sum(_energy(bucket.residual) for bucket, _ in measured)
        whole = sum(_energy(accumulated) for _, accumulated in measured)
        shared = any(bucket.shares_residual for bucket, _ in measured)
        deltas: dict[str, float] = {}
        for bucket, accumulated in measured:
            deltas |= self._deltas(bucket, accumulated)
        return Quality(compression_error=None if shared else share_left(left, whole), deltas=deltas)

    def _deltas(self, bucket: SparseBucket, accumulated: torch.Tensor) -> dict[str, float]:
        total = self._messages.add_up(accumulated, f"quality.{bucket.layout.name}")()
        segments = list(bucket.layout.segments)
        units = zip(
            bucket.units,
            torch.split(total, segments),
            torch.split(total - bucket.applied(), segments),
            bucket.ks,
            strict=True,
        )
        return {
            name: delta(_energy(left), _energy(whole), k=k, numel=whole.numel())
            for name, whole, left, k in units
        }


def _energy(tensor: torch.Tensor) -> float:
    return float(tensor.double().square().sum())
