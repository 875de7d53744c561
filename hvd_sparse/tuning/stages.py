"""The stages of tuning, and what is known in each of them."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_sparse.planning import in_16_bits
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.over_time import PlanOverTime
from hvd_sparse.planning.plan import BucketChoice, Plan
from hvd_sparse.planning.profile import Machine, Profile

# Fraction of a dense step's time within which sparse steps are far ahead. The first steps of a
# training, in which dense ones are timed, were up to 1.6 times as slow as later ones.
FAR_AHEAD = 0.5


class Stage(enum.Enum):
    """Stages of tuning: what happens in the next step."""

    FIRST = "timing the first sparse steps"
    DENSE = "timing dense steps"
    PLANNING = "making a plan"
    SPARSE = "timing sparse steps"
    JUDGING = "comparing"
    SETTLED = "settled"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """State of tuning; the same on all ranks.

    Attributes:
        network: Network between the ranks.
        machine: The ranks' own work.
        stage: Stage of the next step.
        profile: Profile that the plan was made from; None before the first plan.
        plan: Plan that sparse steps follow; None before the first plan.
        dense_seconds: Time of a measured dense step; None if unknown.
        sparse_seconds: Time of a measured sparse step; None if unknown, or if the plan is dense.
        sparse: True if the next step is sparse.
        settled_steps: Number of settled steps until everything is measured again.
        over_time: The plan of local steps, where their number is chosen; else None.
        buckets: The buckets of that plan.
        select_on: The thread that selects; see `simulate`.
        between_devices: How blocks go from device to device, and why so; empty if gradients lie on
            the CPU.
    """

    network: Network
    machine: Machine
    stage: Stage = Stage.DENSE
    profile: Profile | None = None
    plan: Plan | None = None
    dense_seconds: float | None = None
    sparse_seconds: float | None = None
    sparse: bool = False
    settled_steps: int = 0
    over_time: PlanOverTime | None = None
    buckets: tuple[BucketChoice, ...] = ()
    select_on: str = "caller"
    between_devices: str = ""

    @property
    def choices(self) -> Sequence[BucketChoice]:
        """The buckets of the next step; none if it is entirely dense."""
        return self.plan.buckets if self.sparse and self.plan else self.buckets

    @property
    def dense_estimate(self) -> float | None:
        """Time of a dense step: as measured, else as predicted from the profile, if any."""
        if self.dense_seconds is None and self.plan is not None and self.profile is not None:
            return self.plan.dense_seconds
        return self.dense_seconds

    @property
    def is_far_ahead(self) -> bool:
        """True if steps are sparse, and no doubt about the dense ones' time could change that."""
        sparse, dense = self.sparse_seconds, self.dense_estimate
        return self.sparse and bool(sparse and dense and sparse < FAR_AHEAD * dense)

    @property
    def dense16_seconds(self) -> float | None:
        """Time of a dense step of float32 gradients that the host sums in 16 bits.

        Simulated with the host's sums of float16, which were timed. None before the first plan, or
        if they were not timed.
        """
        return None if self.profile is None else in_16_bits.host_step(self.profile)
