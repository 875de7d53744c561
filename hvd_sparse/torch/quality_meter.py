"""Measures what selection leaves behind, in the steps in which a compression asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.torch.mpi_ops as hvd_ops
import torch

from hvd_sparse.exchange import Exchange
from hvd_sparse.quality import Quality, delta, share_left
from hvd_sparse.torch.messages import wait_for
from hvd_sparse.torch.sparse_bucket import SparseBucket


class QualityMeter:
    """Compares what was accumulated with what was applied. It sums the former over the ranks.

    Args:
        prefix: Of the names of the operations; the same on all ranks, of no other optimizer.
        process_set: Horovod's.
        exchange: Whose failure ends every wait.
    """

    def __init__(self, prefix: str, *, process_set: Any, exchange: Exchange) -> None:
        self._prefix = prefix
        self._process_set = process_set
        self._exchange = exchange

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
        handle = hvd_ops.allreduce_async_(
            accumulated,
            op=hvd_ops.Sum,
            name=f"{self._prefix}.quality.{bucket.layout.name}",
            process_set=self._process_set,
        )
        total = wait_for(handle, self._exchange)
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
