"""What `hvd-sparse bench` is asked for, and what it finds out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning.cluster import Cluster

DEFAULT_NUMELS = (10_000, 100_000, 1_000_000, 4_000_000)
MAX_NUMEL = (1 << 31) - 1  # of a bucket of the core
# A method wins where it is so many times as fast as dense; less may be noise.
WINNING_SPEEDUP = 1.05


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is timed.

    Attributes:
        numels: Entries of the gradients, each in [1, 2^31).
        density: Fraction of the entries that is sent, in (0, 1].
        repetitions: Timed turns of each method, at least 2.
    """

    numels: tuple[int, ...] = DEFAULT_NUMELS
    density: float = 0.001
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
        """Entries of so many that each rank sends."""
        return min(numel, math.ceil(self.density * numel))


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Of several turns: the median, and the quartiles below and above it; seconds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Of two turns at least."""
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median=median, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method at one size.

    Attributes:
        numel: Entries of the gradient.
        k: Entries that each rank sends; numel for dense.
        collective: "dense" is Horovod's allreduce.
        wire: "plain" or "packed".
        exchange: From the slowest rank's selection to the slowest rank's sum.
        total: Selection included.
        predicted_exchange: What `costs.cost` says of `exchange`.
        predicted_total: What the model says of `total`.
        speedup: Dense's median over this one's, selection included.
    """

    numel: int
    k: int
    collective: str
    wire: str
    exchange: Timing
    total: Timing
    predicted_exchange: float
    predicted_total: float
    speedup: float


@dataclass(frozen=True, kw_only=True)
class Results:
    """Everything that a run found out; all of it is verified.

    Attributes:
        settings: What was asked for.
        transport: What the sparse exchanges went over: "mpi" or "tcp".
        cluster: The network and the machine as measured.
        rows: By size, as asked for, dense first.
    """

    settings: Settings
    transport: str
    cluster: Cluster
    rows: tuple[Row, ...]

    def at(self, numel: int) -> tuple[Row, ...]:
        """The rows of one size."""
        return tuple(row for row in self.rows if row.numel == numel)


def winners(results: Results) -> tuple[int, ...]:
    """The sizes at which some collective, selection included, was faster than dense; ascending."""
    return tuple(
        numel
        for numel in sorted(set(results.settings.numels))
        if max(row.speedup for row in results.at(numel)) >= WINNING_SPEEDUP
    )
