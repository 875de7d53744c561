"""The cluster: what was measured of the ranks, their network and their work, without a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hvd_sparse import records
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.profile import Machine, Profile

__all__ = ["Cluster"]


@dataclass(frozen=True, kw_only=True)
class Cluster(records.Saved):
    """Where a model can run.

    Attributes:
        network: Between the ranks.
        machine: Each rank.
    """

    KIND: ClassVar[str] = "hvd_sparse cluster"
    VERSION: ClassVar[int] = 1

    network: Network
    machine: Machine

    def with_model_of(self, profile: Profile) -> Profile:
        """The layers and times of a profile, here. Computing takes as long as it took there."""
        return replace(profile, network=self.network, machine=self.machine)
