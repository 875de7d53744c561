"""The plan: how many entries of each layer are sent in a step. Decided here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from hvd_sparse.buckets import Bucket, Layer, assign_buckets
from hvd_sparse.compression import AUTO, Compression
from hvd_sparse.schedules import Warmup

DENSE = "dense"


@lru_cache(maxsize=4096)
def entries_to_send(numel: int, density: float) -> int:
    """The k of a layer: as many entries as a density asks for, rounded up, but at least 1.

    The density counts as the decimal number that it was written as: 0.07 of 100 are 7.
    """
    if numel == 0:
        return 0
    return min(numel, max(1, math.ceil(Fraction(repr(density)) * numel)))


def ks_at(
    bucket: Bucket, densities: Sequence[float], warmup: Warmup | None, step: int
) -> list[int]:
    """K of each unit of selection of a bucket in a step, the same on every rank.

    Args:
        bucket: Its layout.
        densities: Of each unit, once the warm-up is over.
        warmup: Larger densities for the first steps.
        step: Counted from 0.
    """
    if warmup is not None:
        densities = [warmup.density_at(step, density) for density in densities]
    return [entries_to_send(n, d) for n, d in zip(bucket.segments, densities, strict=True)]


def largest_ks(bucket: Bucket, densities: Sequence[float], warmup: Warmup | None) -> list[int]:
    """The largest k of each unit in any step: what memory and messages are made for."""
    if warmup is not None:
        densities = [warmup.largest(density) for density in densities]
    return [entries_to_send(n, d) for n, d in zip(bucket.segments, densities, strict=True)]


@dataclass(frozen=True, kw_only=True)
class BucketPlan:
    """What is decided about one bucket.

    Attributes:
        layers: Names, in the order in which their gradients become ready.
        densities: Of each unit of selection: each layer, or the whole bucket.
        collective: A name from hvd_sparse.collectives, or "dense".
        wire: "plain" or "packed".
    """

    layers: tuple[str, ...]
    densities: tuple[float, ...]
    collective: str
    wire: str = "plain"


def fixed_plan(layers: Iterable[Layer], compression: Compression) -> tuple[BucketPlan, ...]:
    """The buckets of a compression that is not adaptive.

    Args:
        layers: In the order in which their gradients are expected.
        compression: Its density holds for every layer; "auto" stands for gtopk and plain indices.
    """
    collective = "gtopk" if compression.collective == AUTO else compression.collective
    return tuple(
        BucketPlan(
            layers=tuple(layer.name for layer in bucket.layers),
            densities=(compression.density,) * len(bucket.segments),
            collective=collective,
            wire="packed" if compression.indices == "packed" else "plain",
        )
        for bucket in assign_buckets(
            layers, bucket_numel=compression.bucket_numel, layer_wise=compression.layer_wise
        )
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How the gradients of a step travel.

    Attributes:
        buckets: In the order in which their gradients become ready.
        step: Predicted seconds of a step with them.
        dense_step: Predicted seconds of a step that is exchanged dense.
        compute: Seconds of a step without any exchange.
    """

    buckets: tuple[BucketPlan, ...]
    step: float
    dense_step: float
    compute: float

    @property
    def is_dense(self) -> bool:
        return all(bucket.collective == DENSE for bucket in self.buckets)


def plan_for(profile, compression):
    raise NotImplementedError
