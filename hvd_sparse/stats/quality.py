"""How much of a step's gradients selection leaves behind, measured where quality_every asks for it.

u: what a rank has accumulated, residual and gradient; R: the sum that the ranks applied; P ranks.

    compression error  =  ||u - what of it was delivered||^2 / ||u||^2               of one rank
    delta of a unit    =  ||sum_p u_p - R||^2 / ((1 - k / d) ||sum_p u_p||^2)

The denominator of delta is what k entries chosen at random would leave of the sum, on average.
Convergence of LAGS is proved for delta <= 1 in every layer: its Assumption 1, here of what was
really applied, whatever sparsifier and collective chose it. One that drops entries on its way, as
gtopk does, can exceed 1 where ranks select quite different entries.

Reference:
    Shi et al., Layer-wise Adaptive Gradient Sparsification for Distributed Deep Learning with
    Convergence Guarantees, ECAI 2020, https://arxiv.org/abs/1911.08727.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What was measured in one step.

    Attributes:
        compression_error: Of this rank, over all that travelled sparse, in [0, 1]; None where ranks
            of a node share a residual ("hierarchical").
        deltas: By unit of selection, a layer or a whole bucket; the same on all ranks.
    """

    compression_error: float | None
    deltas: Mapping[str, float]

    @property
    def largest_delta(self) -> float:
        """Assumption 1 holds if it is at most 1."""
        return max(self.deltas.values(), default=0.0)


@dataclass(frozen=True, kw_only=True)
class UnitSample:
    """A unit of selection, summed over the ranks.

    Attributes:
        name: Of the layer, or of the bucket.
        left: Squared norm of the sum without what was applied.
        whole: Squared norm of the sum.
        k: Entries asked for.
        numel: Entries of the unit.
    """

    name: str
    left: float
    whole: float
    k: int
    numel: int

    @property
    def delta(self) -> float:
        """Where k is all entries, nothing is left to chance: 0."""
        return (
            _share(self.left, (1 - self.k / self.numel) * self.whole) if self.k < self.numel else 0
        )


@dataclass(frozen=True, kw_only=True)
class BucketSample:
    """A bucket, as one rank has it.

    Attributes:
        left: Squared norm of the residual after the step.
        whole: Squared norm of what was accumulated.
        shares_residual: Whether the ranks of a node share what they have yet to send.
        units: Its units of selection.
    """

    left: float
    whole: float
    shares_residual: bool
    units: Sequence[UnitSample]


def quality_of(buckets: Sequence[BucketSample]) -> Quality:
    """What these buckets amount to, all that travelled sparse in a step."""
    left, whole = sum(one.left for one in buckets), sum(one.whole for one in buckets)
    shared = any(one.shares_residual for one in buckets)
    return Quality(
        compression_error=None if shared else _share(left, whole),
        deltas={unit.name: unit.delta for one in buckets for unit in one.units},
    )


def _share(left: float, whole: float) -> float:
    return left / whole if whole > 0 else 0.0
