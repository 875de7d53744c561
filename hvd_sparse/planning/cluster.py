"""The cluster: measurements of the network and of the ranks' own work, without a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hvd_sparse.planning import records
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.profile import Machine, Profile

__all__ = ["Cluster"]


@dataclass(frozen=True, kw_only=True)
class Cluster(records.Saved):
    """The network and the machines on which a model can run.

    Attributes:
        network: The network between the ranks.
        machine: The machine of each rank.
    """

    KIND: ClassVar[str] = "hvd_sparse cluster"
    VERSION: ClassVar[int] = 1

    network: Network
    machine: Machine

    def with_model_of(self, profile: Profile) -> Profile:
        """Returns the profile on this cluster; its compute times stay as they were measured."""
        return replace(profile, network=self.network, machine=self.machine)
