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

from collections.abc import Mapping
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


def share_left(left: float, whole: float) -> float:
    """What is left of a squared norm; of nothing, nothing is left."""
    return left / whole if whole > 0 else 0.0


def delta(left: float, whole: float, *, k: int, numel: int) -> float:
    """Delta of a unit of selection.

    Args:
        left: Squared norm of the sum without what was applied.
        whole: Squared norm of the sum.
        k: Entries asked for.
        numel: Entries of the unit. Where k is all of them, nothing is left to chance: 0.
    """
    return share_left(left, (1 - k / numel) * whole) if k < numel else 0.0
