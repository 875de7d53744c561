"""Measures the part of gradients that selection leaves behind, every `quality_every` steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_sparse.compression import Compression
from hvd_sparse.compression.buckets import Bucket
from hvd_sparse.planning import plan
from hvd_sparse.stats.quality import BucketSample, Quality, UnitSample, quality_of


class QualityMeter:
    """Compares the accumulated values, which it sums over the ranks, with the applied sum.

    Args:
        compression: The user's compression.
        add_up: A function that sums a float32 array over the ranks. Collective.
        size: Number of ranks.
        local_size: Ranks on each node; None if nodes differ.
    """

    def __init__(
        self,
        compression: Compression,
        add_up: Callable[[NDArray[Any]], NDArray[Any]],
        *,
        size: int,
        local_size: int | None,
    ) -> None:
        self._compression = compression
        self._add_up = add_up
        self._size = size
        self._local_size = local_size or 1
        self._step = -1
        self._samples: list[BucketSample] = []

    def take(
        self,
        layout: Bucket,
        choice: plan.BucketChoice,
        step: int,
        accumulated: NDArray[Any],
        left: NDArray[Any],
        applied: NDArray[Any],
    ) -> None:
        """Adds a bucket of a committed step, in the same order on all ranks. Collective.

        Args:
            layout: The bucket's layout.
            choice: The plan's choice for the bucket.
            step: Number of steps before this one.
            accumulated: Residual plus gradients before selection, float32, flat.
            left: The residual after the step, float32, flat.
            applied: The sum over the ranks that the gradients now hold, float32, flat.
        """
        if step != self._step:
            self._step, self._samples = step, []
        total = self._add_up(accumulated)
        ks = plan.ks_at(layout, choice.densities, self._compression.warmup, step)
        ends = np.cumsum(layout.segments)[:-1]
        units = zip(
            layout.units, np.split(total, ends), np.split(total - applied, ends), ks, strict=True
        )
        self._samples.append(
            BucketSample(
                undelivered_energy=_energy(left),
                energy=_energy(accumulated),
                shares_residual=choice.shares_residual(
                    size=self._size, local_size=self._local_size
                ),
                units=[
                    UnitSample(
                        name=name,
                        undelivered_energy=_energy(rest),
                        energy=_energy(unit_sum),
                        k=k,
                        numel=unit_sum.size,
                    )
                    for name, unit_sum, rest, k in units
                ],
            )
        )

    def of(self, step: int) -> Quality | None:
        """Returns the quality of a step; None if it was not measured, or was refused."""
        return quality_of(self._samples) if step == self._step else None


def _energy(array: NDArray[Any]) -> float:
    return float(np.square(array, dtype=np.float64).sum())
