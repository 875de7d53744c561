"""The plan: how many entries of each layer are sent in a step, in which buckets, and how.

hvd_sparse/planning/planner.py makes a plan from measured numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

from hvd_sparse import _core
from hvd_sparse.compression import Compression
from hvd_sparse.compression.buckets import Bucket, Layer, assign_buckets, fragments_of
from hvd_sparse.compression.checks import checked_density
from hvd_sparse.compression.collectives import DENSE_COLLECTIVES
from hvd_sparse.compression.parts import AUTO, Warmup
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning import records
from hvd_sparse.planning.account import BYTES_OF_VALUES, WIRES
from hvd_sparse.planning.models import MODELS
from hvd_sparse.planning.pipeline import Stage
from hvd_sparse.planning.routes import CALLS, ROUNDS, ROUTES

DENSE = "dense"

# Entries below which a slice would cost more in messages than it saves in waiting; P3 takes as many
# (Jayarajan et al., MLSys 2019).
LEAST_SLICE = 50_000


@lru_cache(maxsize=4096)
def entries_to_send(numel: int, density: float) -> int:
    """Returns the k of a layer: the entries that a density asks for, rounded up, but at least 1.

    The density counts as the decimal number that it was written as: 0.07 of 100 are 7.
    """
    if numel == 0:
        return 0
    return min(numel, max(1, math.ceil(Fraction(repr(density)) * numel)))


def ks_at(
    bucket: Bucket, densities: Sequence[float], warmup: Warmup | None, step: int
) -> list[int]:
    """Returns the k of each unit of selection of a bucket in a step, the same on every rank.

    Args:
        bucket: The bucket's layout.
        densities: Density of each unit, once the warm-up is over.
        warmup: Larger densities for the first steps.
        step: Number of the step, from 0.
    """
    if warmup is not None:
        densities = [warmup.density_at(step, density) for density in densities]
    return [entries_to_send(n, d) for n, d in zip(bucket.segments, densities, strict=True)]


def ks_by_step(
    bucket: Bucket, densities: Sequence[float], warmup: Warmup | None
) -> list[tuple[int, list[int]]]:
    """Returns the first step, from 0, and the `ks_at` of each warm-up stage and of what follows."""
    stages = 0 if warmup is None else len(warmup.densities)
    steps = [0] if warmup is None else [stage * warmup.steps for stage in range(stages + 1)]
    return [(step, ks_at(bucket, densities, warmup, step)) for step in steps]


def largest_ks(bucket: Bucket, densities: Sequence[float], warmup: Warmup | None) -> list[int]:
    """Returns the largest k of each unit in any step, which sizes memory and messages."""
    if warmup is not None:
        densities = [warmup.largest(density) for density in densities]
    return [entries_to_send(n, d) for n, d in zip(bucket.segments, densities, strict=True)]


@dataclass(frozen=True, kw_only=True)
class BucketChoice:
    """Layers that are exchanged together, and how.

    Attributes:
        layers: Names of the layers, in the order in which their gradients become ready.
        densities: Density of each unit of selection: each layer, or the whole bucket; in (0, 1], 1
            if the bucket is dense.
        collective: The collective that exchanges the bucket; "dense": the host's allreduce.
        wire: The wire format, "plain" or "packed".
        values: Type of the values in messages; a dense bucket has "float32".
        nodes_first: True if the ranks of a node add up their residuals first.
        route: One of routes.ROUTES; between devices only where these are connected and the
            collective can. A dense bucket has "calls".
    """

    layers: tuple[str, ...]
    densities: tuple[float, ...]
    collective: str
    wire: str
    values: str = "float32"
    nodes_first: bool = False
    route: str = CALLS

    @property
    def dense(self) -> bool:
        """True if the host's allreduce exchanges the bucket."""
        return self.collective == DENSE

    def shares_residual(self, *, size: int, local_size: int) -> bool:
        """Returns true if the ranks of a node share one residual.

        Args:
            size: Number of ranks.
            local_size: Ranks on a node, as the exchange counts them; 1 if nodes differ.
        """
        return not self.dense and _core.sums_nodes(
            self.collective, nodes_first=self.nodes_first, size=size, local_size=local_size
        )


def sent_layers(layers: Sequence[Layer], compression: Compression) -> tuple[Layer, ...]:
    """Returns the layers as they are sent: our dense sums take large ones in slices.

    So a layer that is needed first waits for one slice in flight, and not for a whole layer. A
    sparse layer stays whole, since it is a unit of selection, and its entries are few.
    """
    if compression.adaptive or compression.collective_name not in DENSE_COLLECTIVES:
        return tuple(layers)
    largest = max(compression.layers.bucket_numel, LEAST_SLICE)
    return tuple(part for layer in layers for part in layer.slices(largest))


def fixed_choices(layers: Sequence[Layer], compression: Compression) -> tuple[BucketChoice, ...]:
    """Returns the buckets of a compression that is not adaptive.

    Args:
        layers: The layers, in the order in which their gradients are expected. No bucket has layers
            of two fragments.
        compression: The compression, whose density holds for every layer; "auto" stands for
            allgather and plain indices.
    """
    collective = compression.collective_name
    if collective == AUTO:
        collective = "allgather"
    return tuple(
        BucketChoice(
            layers=tuple(layer.name for layer in bucket.layers),
            densities=(compression.density,) * len(bucket.segments),
            collective=collective,
            wire="packed" if compression.indices == "packed" else "plain",
            values="float32" if compression.values == AUTO else compression.values,
            nodes_first=compression.nodes_first is True,
            route=ROUNDS,
        )
        for fragment in fragments_of(layers, compression.fragments)
        for bucket in assign_buckets(
            fragment,
            bucket_numel=compression.layers.bucket_numel,
            layer_wise=compression.layers.layer_wise,
        )
    )


@dataclass(frozen=True, kw_only=True)
class BucketPlan(BucketChoice):
    """A bucket whose layers are units of selection, with its predicted times.

    Attributes:
        numels: Entries of each layer.
        select_seconds: Predicted seconds of accumulating and selecting.
        exchange_seconds: Predicted seconds from the last rank's block to the sum in the gradients.
    """

    numels: tuple[int, ...]
    select_seconds: float
    exchange_seconds: float

    def __post_init__(self) -> None:
        records.check_finite(self)
        if not 0 < len(self.layers) == len(self.numels) == len(self.densities):
            raise InvalidArgumentError(
                f"a bucket must have as many layers as numels and densities, and one at least, got "
                f"{len(self.layers)}, {len(self.numels)} and {len(self.densities)}"
            )
        for density in self.densities:
            checked_density("density of a layer", density)
        if self.collective not in MODELS or self.wire not in WIRES:
            raise InvalidArgumentError(
                f"a bucket must have a collective of {sorted(MODELS)} and a wire of {list(WIRES)}, "
                f"got {self.collective!r} and {self.wire!r}"
            )
        if self.values not in BYTES_OF_VALUES:
            raise InvalidArgumentError(
                f"values of a bucket must be one of {list(BYTES_OF_VALUES)}, got {self.values!r}"
            )
        if self.route not in ROUTES:
            raise InvalidArgumentError(
                f"route of a bucket must be one of {list(ROUTES)}, got {self.route!r}"
            )

    @property
    def numel(self) -> int:
        """Entries of all layers."""
        return sum(self.numels)

    @property
    def k(self) -> int:
        """Entries that a rank sends if each layer is a unit of selection."""
        pairs = zip(self.numels, self.densities, strict=True)
        return sum(entries_to_send(numel, density) for numel, density in pairs)


@dataclass(frozen=True, kw_only=True)
class Plan(records.Saved):
    """The buckets of a step, the same on every rank, with the predicted times of the step.

    Attributes:
        buckets: The buckets, in the order in which they become ready.
        size: Number of ranks that the plan was made for.
        step_seconds: Predicted seconds of a step under this plan.
        dense_seconds: Predicted seconds of a step under the host's dense allreduce with tensor
            fusion.
        compute_seconds: Seconds of forward and backward alone.
    """

    KIND: ClassVar[str] = "hvd_sparse plan"
    VERSION: ClassVar[int] = 1

    buckets: tuple[BucketPlan, ...]
    size: int
    step_seconds: float
    dense_seconds: float
    compute_seconds: float

    def __post_init__(self) -> None:
        records.check_finite(self)

    @property
    def dense(self) -> bool:
        """True if all buckets are dense, so that the host sums the whole step."""
        return all(bucket.dense for bucket in self.buckets)

    @property
    def speedup(self) -> float:
        """Predicted speedup over dense."""
        return self.dense_seconds / self.step_seconds if self.step_seconds else 1.0

    @property
    def efficiency(self) -> float:
        """Predicted fraction of the step that is computing."""
        return self.compute_seconds / self.step_seconds if self.step_seconds else 1.0

    @property
    def waits(self) -> float:
        """Steps that an entry of a sparse bucket waits on average; 0 if all buckets are dense."""
        sparse = [bucket for bucket in self.buckets if not bucket.dense]
        sent = sum(bucket.k for bucket in sparse)
        return sum(bucket.numel for bucket in sparse) / sent if sent else 0.0

    @property
    def held_back(self) -> float:
        """Fraction of the entries that a step does not send."""
        sent = sum(bucket.numel if bucket.dense else bucket.k for bucket in self.buckets)
        return 1 - sent / sum(bucket.numel for bucket in self.buckets)

    def decides_like(self, other: Plan) -> bool:
        """Returns true if both plans decide the same, whatever they predict."""

        def decided(plan: Plan) -> list[tuple[object, ...]]:
            return [
                (
                    one.layers,
                    one.densities,
                    one.collective,
                    one.wire,
                    one.values,
                    one.nodes_first,
                    one.route,
                )
                for one in plan.buckets
            ]

        return decided(self) == decided(other)

    def stages(self) -> list[Stage]:
        """Returns its buckets as stages of the pipeline."""
        return [
            Stage(
                layers=len(bucket.layers),
                select=bucket.select_seconds,
                exchange=bucket.exchange_seconds,
            )
            for bucket in self.buckets
        ]
