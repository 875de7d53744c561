"""Timing for `hvd-sparse bench`: dense sums and every sparse collective, side by side.

All methods sum the same gradients and take turns, so that any disturbance of the machines affects
all of them. A time is the slowest rank's; ranks begin together, after a barrier of their own.
"""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hvd_sparse import _core
from hvd_sparse.bench.results import Results, Row, Settings, Timing, method_name
from hvd_sparse.compression.collectives import SHARD_SUM, find_collective
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.errors import HvdSparseError
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.planning import costs
from hvd_sparse.planning.cluster import Cluster
from hvd_sparse.ranks.world import World

UNTIMED = 2  # untimed turns: connections open, memory is touched

# Its choice depends on the gradient alone, so every turn must produce the same bits.
SPARSIFIER = "top_k"

VALUES = ("float32", "bfloat16", "int8", "int4", "ternary")  # of our dense sum
FORMS = (("plain", "float32"), ("packed", "int4"))  # of selected entries

Array: TypeAlias = NDArray[np.float32]


class VerificationError(HvdSparseError):
    """A collective's sum is not the sum of what left the residuals."""


class Ranks(Protocol):
    """The participating ranks, and their library's allreduce between them."""

    world: World
    library: str

    def barrier(self) -> None:
        """Returns when all ranks have called it, on all of them at nearly the same time."""

    def allreduce(self, array: Array) -> None:
        """Sums an array over all ranks, in place."""


def run(settings: Settings, ranks: Ranks, exchange: Exchange, cluster: Cluster) -> Results:
    """Times every method at every size. Collective.

    Args:
        settings: The settings, the same on all ranks.
        ranks: The participating ranks.
        exchange: The exchange between them; it has no buckets, before and after.
        cluster: The measured cluster, the basis of predictions.

    Raises:
        VerificationError: On all ranks alike, if a sum was wrong.
    """
    rows: list[Row] = []
    for numel in dict.fromkeys(settings.numels):
        rows += _rows_of_size(numel, settings, ranks, exchange, cluster)
    return Results(
        settings=settings,
        library=ranks.library,
        transport=exchange.transport,
        cluster=cluster,
        rows=tuple(rows),
    )


def integer_gradient(numel: int, rank: int, size: int) -> Array:
    """Returns normal numbers, rounded to integers so small that sums over all ranks are exact."""
    scale = min(1e4, 2**24 / (8 * size))  # none is 8 standard deviations away
    normal = np.random.default_rng(1 + rank).standard_normal(numel, dtype=np.float32)
    rounded: Array = np.rint(np.float32(scale) * normal)
    return rounded


def _rows_of_size(
    numel: int, settings: Settings, ranks: Ranks, exchange: Exchange, cluster: Cluster
) -> list[Row]:
    gradient = integer_gradient(numel, ranks.world.rank, ranks.world.size)
    k = settings.k(numel)
    names = [Name(SHARD_SUM, values=values) for values in VALUES]
    names += [
        Name(collective, *form, first)
        for collective in _core.collectives()
        for first in (False, True)
        if costs.possible(collective, cluster.network, nodes_first=first)
        for form in FORMS
    ]
    methods: dict[Name, Method] = {Name("dense"): Dense(gradient, ranks)}
    for name in names:
        methods[name] = OfTheCore(name, gradient, name.k(k, numel), ranks, exchange)
    for method in methods.values():
        method.run()
    _require(ranks, numel, {name: method.verify() for name, method in methods.items()})
    right = dict.fromkeys(methods, True)
    bits = {name: _bits(method.sum) for name, method in methods.items()}
    turns: list[list[tuple[float, float]]] = []
    for _ in range(UNTIMED + settings.repetitions):
        turns.append([])
        for name, method in methods.items():
            turns[-1].append(method.run())
            right[name] &= _bits(method.sum) == bits[name]
    exchange.clear_buckets()
    _require(ranks, numel, right, bits)
    timed = list[list[tuple[float, float]]]
    reports = ranks.world.allgather_object(turns[UNTIMED:], timed)
    slowest = np.max(np.array(reports), axis=0)  # [repetitions, methods, (selection, total)]
    return _rows(list(methods), slowest, numel, k, cluster)


class Name(NamedTuple):
    """Name of a method: the collective, "dense" for the library's own, and how it sends entries."""

    collective: str
    wire: str = "plain"
    values: str = "float32"
    nodes_first: bool = False

    def __str__(self) -> str:
        return method_name(self.collective, self.wire, self.values, nodes_first=self.nodes_first)

    @property
    def is_dense(self) -> bool:
        """True if all entries are summed."""
        return self.collective in costs.DENSE_SUMS

    def k(self, k: int, numel: int) -> int:
        """Returns the number of entries that each rank sends, k if it selects."""
        return numel if self.is_dense else k


class Method(Protocol):
    """A way to sum a gradient over the ranks.

    Attributes:
        sum: Array in which `run` leaves the sum.
    """

    sum: Array

    def run(self) -> tuple[float, float]:
        """Sums the gradient; returns the seconds of the selection, and of everything."""

    def verify(self) -> bool:
        """Returns true if the result of `run` is right on this rank. Collective."""


class Dense:
    """The allreduce of the library that runs the ranks."""

    def __init__(self, gradient: Array, ranks: Ranks) -> None:
        self._gradient, self._ranks = gradient, ranks
        self.sum = np.empty_like(gradient)

    def run(self) -> tuple[float, float]:
        """Sums the gradient, see `Method`."""
        self.sum[:] = self._gradient
        self._ranks.barrier()
        start = time.perf_counter()
        self._ranks.allreduce(self.sum)
        return 0.0, time.perf_counter() - start

    def verify(self) -> bool:
        """Returns true: the other sums are compared with this one, which every turn must repeat."""
        return True


class OfTheCore:
    """A collective of the core, with error feedback from a residual of zeros."""

    def __init__(
        self, name: Name, gradient: Array, k: int, ranks: Ranks, exchange: Exchange
    ) -> None:
        self._gradient, self._k, self._ranks = gradient, k, ranks
        self._is_dense = name.is_dense
        facts = find_collective(name.collective)
        # Otherwise a residual takes over sums, or rounding errors, where its rank sent nothing.
        self._keeps_own = name.values == "float32" and not facts.has_owners and not name.nodes_first
        self._lossless = self._keeps_own and facts.delivers_all
        self.sum, self._residual = np.empty_like(gradient), np.empty_like(gradient)
        self._state = np.zeros((1, 4), np.float32)
        bucket = exchange.add_bucket(
            f"{name}, {gradient.size} entries",
            numels=[gradient.size],
            segments=[gradient.size],
            max_ks=[k],
            sparsifier=as_sparsifier(SPARSIFIER),
            collective=name.collective,
            indices=name.wire,
            values=name.values,
            nodes_first=name.nodes_first,
        )
        self._steps = ArraySteps(exchange, bucket)

    def run(self) -> tuple[float, float]:
        """Sums the gradient, see `Method`."""
        self.sum[:] = self._gradient
        self._residual[:] = 0
        self._ranks.barrier()
        start = time.perf_counter()
        self._steps.begin(residual=Buffer.of(self._residual), states=Buffer.of(self._state))
        self._steps.launch(0, [Buffer.of(self.sum)])
        (stats,) = self._steps.wait()
        seconds = time.perf_counter() - start
        self._steps.commit()
        return 0.0 if self._is_dense else stats.select_seconds, seconds

    def verify(self) -> bool:
        """Returns true if the dense sum of what left the residuals is the collective's sum."""
        left = self._gradient - self._residual
        sent = int(np.count_nonzero(left))
        self._ranks.allreduce(left)
        right = bool(self.sum.any()) and np.array_equal(left, self.sum)
        right &= sent <= self._k or not self._keeps_own
        if self._lossless:
            right &= sent == min(self._k, int(np.count_nonzero(self._gradient)))
        return right


class _Verdict(NamedTuple):
    """A rank's verdict on each method, in the order of the methods.

    Attributes:
        right: For each method, true if its sum is right.
        bits: Checksums of the sums; empty where ranks need not hold the same sums.
    """

    right: list[bool]
    bits: list[int]


def _require(
    ranks: Ranks,
    numel: int,
    right: dict[Name, bool],
    bits: dict[Name, int] | None = None,
) -> None:
    """Raises on all ranks if a sum is wrong on one of them, or its bits differ. Collective."""
    verdict = _Verdict([*right.values()], [] if bits is None else [bits[name] for name in right])
    verdicts: list[_Verdict] = ranks.world.allgather_object(verdict, _Verdict)
    for at, name in enumerate(right):
        wrong = [rank for rank, one in enumerate(verdicts) if not one.right[at]]
        differ = bits is not None and len({one.bits[at] for one in verdicts}) > 1
        if wrong or differ:
            where = f"on ranks {wrong}" if wrong else "differs between the ranks"
            raise VerificationError(f"{name}: {numel} entries came to a wrong sum: {where}")


def _rows(
    names: Sequence[Name],
    slowest: NDArray[np.float64],
    numel: int,
    k: int,
    cluster: Cluster,
) -> list[Row]:
    rows = []
    dense = statistics.median(slowest[:, 0, 1])
    for at, name in enumerate(names):
        selection, total = slowest[:, at, 0], slowest[:, at, 1]
        cost = costs.cost(
            name.collective,
            k=name.k(k, numel),
            numel=numel,
            network=cluster.network,
            machine=cluster.machine,
            wire=name.wire,
            values=name.values,
            nodes_first=name.nodes_first,
        )
        select = 0.0 if name.is_dense else cluster.machine.select_seconds(numel)
        timing = Timing.of(total.tolist())
        rows.append(
            Row(
                numel=numel,
                k=name.k(k, numel),
                collective=name.collective,
                wire=name.wire,
                values=name.values,
                nodes_first=name.nodes_first,
                exchange=Timing.of((total - selection).tolist()),
                total=timing,
                predicted_exchange=cost.seconds,
                predicted_total=select + cost.seconds,
                speedup=dense / timing.median,
            )
        )
    return rows


def _bits(array: Array) -> int:
    """Returns a checksum, which almost surely differs for arrays that differ in a bit."""
    return zlib.crc32(array.data)
