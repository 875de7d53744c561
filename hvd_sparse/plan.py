"""The plan: how many entries of each layer are sent in a step. Decided here and nowhere else."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from hvd_sparse.buckets import Bucket
from hvd_sparse.compression import Compression


@lru_cache(maxsize=4096)
def entries_to_send(numel: int, density: float) -> int:
    """The k of a layer: as many entries as a density asks for, rounded up, but at least 1.

    The density counts as the decimal number that it was written as: 0.07 of 100 are 7.
    """
    if numel == 0:
        return 0
    return min(numel, max(1, math.ceil(Fraction(repr(density)) * numel)))


def density_at(compression: Compression, step: int) -> float:
    """The density of a step, counted from 0."""
    if compression.warmup is None:
        return compression.density
    return compression.warmup.density_at(step, compression.density)


def ks_at(bucket: Bucket, compression: Compression, step: int) -> list[int]:
    """K of each segment of a bucket in a step, the same on every rank."""
    density = density_at(compression, step)
    return [entries_to_send(numel, density) for numel in bucket.segments]


def largest_ks(bucket: Bucket, compression: Compression) -> list[int]:
    """The largest k of each segment in any step: what memory and messages are made for."""
    density = compression.density
    if compression.warmup is not None:
        density = compression.warmup.largest(density)
    return [entries_to_send(numel, density) for numel in bucket.segments]
