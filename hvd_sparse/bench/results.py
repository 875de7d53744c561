"""Settings and results of `hvd-sparse bench`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_sparse.compression import LAGS
from hvd_sparse.compression.collectives import COLLECTIVES, SHARD_SUM
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning.cluster import Cluster

DEFAULT_NUMELS = (10_000, 100_000, 1_000_000, 4_000_000)
MAX_NUMEL = (1 << 31) - 1  # limit of a bucket of the core
# Speed-up over dense from which on a method wins; less may be noise.
WINNING_SPEEDUP = 1.05


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a benchmark run.

    Attributes:
        numels: Numbers of entries of the gradients, each in [1, 2^31).
        density: Fraction of the entries that is sent, in (0, 1].
        repetitions: Number of timed turns of each method, at least 2.
    """

    numels: tuple[int, ...] = DEFAULT_NUMELS
    density: float = LAGS.density
    repetitions: int = 9

    def __post_init__(self) -> None:
        if not self.numels:
            raise InvalidArgumentError("numel must be given at least once, got none")
        for numel in self.numels:
            if not 1 <= numel <= MAX_NUMEL:
                raise InvalidArgumentError(f"numel must lie in [1, {MAX_NUMEL}], got {numel}")
        if not 0 < self.density <= 1:
            raise InvalidArgumentError(f"density must lie in (0, 1], got {self.density}")
        if self.repetitions < 2:
            raise InvalidArgumentError(f"repetitions must be at least 2, got {self.repetitions}")

    def k(self, numel: int) -> int:
        """Returns the number of entries that each rank sends of `numel`."""
        return min(numel, math.ceil(self.density * numel))


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Median of several turns, and the quartiles below and above it, in seconds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Computes the quartiles of two or more turns."""
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median=median, low=low, high=high)


def method_name(collective: str, wire: str, values: str, *, nodes_first: bool) -> str:
    """Returns the name of a method, for tables."""
    parts = [collective]
    if nodes_first:
        parts.append("nodes first")
    if collective == SHARD_SUM or values != "float32":
        parts.append(values)
    elif wire == "packed":
        parts.append(wire)
    return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Result of one method at one size.

    Attributes:
        numel: Number of entries of the gradient.
        k: Number of entries that each rank sends; numel if it is a dense sum.
        collective: Name of the collective; "dense" is the allreduce of the ranks' library.
        wire: "plain" or "packed".
        values: Type of the values in messages.
        nodes_first: True if the ranks of a node add up their residuals first.
        exchange: Time from the slowest rank's selection to the slowest rank's sum.
        total: Time with selection.
        predicted_exchange: Prediction of `exchange` by `costs.cost`.
        predicted_total: Prediction of `total` by the same model.
        speedup: Dense's median time over this method's, selection included.
    """

    numel: int
    k: int
    collective: str
    wire: str
    values: str = "float32"
    nodes_first: bool = False
    exchange: Timing
    total: Timing
    predicted_exchange: float
    predicted_total: float
    speedup: float

    @property
    def name(self) -> str:
        """Name of the method, for tables."""
        return method_name(self.collective, self.wire, self.values, nodes_first=self.nodes_first)


@dataclass(frozen=True, kw_only=True)
class Results:
    """Results of a run; all sums are verified.

    Attributes:
        settings: The settings.
        library: Name of the library that runs the ranks and sums dense: "Horovod" or
            "torch.distributed".
        transport: Transport of the sparse exchanges: "mpi" or "tcp".
        cluster: The measured network and machine.
        rows: Rows by size, in the order asked for; first dense, then the core's own dense sum.
    """

    settings: Settings
    library: str
    transport: str
    cluster: Cluster
    rows: tuple[Row, ...]

    def at(self, numel: int) -> tuple[Row, ...]:
        """Returns the rows of one size."""
        return tuple(row for row in self.rows if row.numel == numel)

    def sparse_at(self, numel: int) -> tuple[Row, ...]:
        """Returns the rows of one size whose collective takes selected entries."""
        return tuple(row for row in self.at(numel) if row.collective in COLLECTIVES)


def winners(results: Results) -> tuple[int, ...]:
    """Returns, ascending, the sizes at which a collective with selection beat dense."""
    return tuple(
        numel
        for numel in sorted(set(results.settings.numels))
        if max(row.speedup for row in results.sparse_at(numel)) >= WINNING_SPEEDUP
    )
