"""How much of a step's gradients selection leaves behind, measured if quality_every asks for it.

u: the accumulated values of a rank, residual plus gradient; R: the sum that the ranks applied; P:
number of ranks.

    compression error  =  ||u - the part of u that was delivered||^2 / ||u||^2       of one rank
    delta of a unit    =  ||sum_p u_p - R||^2 / ((1 - k / d) ||sum_p u_p||^2)

The denominator of delta is what k entries chosen at random would leave of the sum, on average.
Convergence of LAGS is proved for delta <= 1 in every layer (Assumption 1). Here delta is computed
from the sum that was really applied, whatever sparsifier and collective produced it. A collective
that drops entries on the way, as gtopk does, can exceed 1 if ranks select quite different entries.

Reference:
    Shi et al., Layer-wise Adaptive Gradient Sparsification for Distributed Deep Learning with
    Convergence Guarantees, ECAI 2020, https://arxiv.org/abs/1911.08727.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Quality of the selection in one step.

    Attributes:
        compression_error: Error of this rank, over all sparse buckets, in [0, 1]; None if ranks of
            a node share a residual.
        deltas: Delta by unit of selection, a layer or a whole bucket; the same on all ranks.
    """

    compression_error: float | None
    deltas: Mapping[str, float]

    @property
    def largest_delta(self) -> float:
        """The largest delta of any unit; Assumption 1 holds if it is at most 1."""
        return max(self.deltas.values(), default=0.0)


@dataclass(frozen=True, kw_only=True)
class UnitSample:
    """A unit of selection, summed over the ranks.

    Attributes:
        name: Name of the layer or the bucket.
        undelivered_energy: Squared norm of the sum minus what was applied.
        energy: Squared norm of the sum.
        k: Number of entries asked for.
        numel: Number of entries of the unit.
    """

    name: str
    undelivered_energy: float
    energy: float
    k: int
    numel: int

    @property
    def delta(self) -> float:
        """The unit's delta; 0 if k is all entries, since nothing is then left to chance."""
        return (
            _share(self.undelivered_energy, (1 - self.k / self.numel) * self.energy)
            if self.k < self.numel
            else 0
        )


@dataclass(frozen=True, kw_only=True)
class BucketSample:
    """One rank's measurement of a bucket.

    Attributes:
        undelivered_energy: Squared norm of the residual after the step.
        energy: Squared norm of the accumulated values.
        shares_residual: True if the ranks of a node share the residual.
        units: The bucket's units of selection.
    """

    undelivered_energy: float
    energy: float
    shares_residual: bool
    units: Sequence[UnitSample]


def quality_of(buckets: Sequence[BucketSample]) -> Quality:
    """Combines the samples of all sparse buckets of a step."""
    left = sum(one.undelivered_energy for one in buckets)
    energy = sum(one.energy for one in buckets)
    shared = any(one.shares_residual for one in buckets)
    return Quality(
        compression_error=None if shared else _share(left, energy),
        deltas={unit.name: unit.delta for one in buckets for unit in one.units},
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
