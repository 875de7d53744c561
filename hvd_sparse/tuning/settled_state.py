"""The settled state of a tuner, for checkpoints: a resumed run keeps its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hvd_sparse.compression.buckets import Layer
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning import records
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.plan import Plan
from hvd_sparse.planning.profile import Machine, Profile


@dataclass(frozen=True, kw_only=True)
class SettledState(records.Saved):
    """The result of a comparison, and its age in steps.

    Attributes:
        network: The measured network.
        machine: The measured machine.
        profile: The profile that the plan was made from.
        plan: The plan that sparse steps follow.
        dense_seconds: Time of a measured dense step, if known.
        sparse_seconds: Time of a measured sparse step, if known.
        sparse: True if the sparse step was faster.
        settled_steps: Number of steps from one comparison to the next.
        steps: Number of these steps that are over.
        floor: Lower limit of the plan's densities, as a warm-up set it when the plan was made; None
            in older files: the limit at the time of loading.
    """

    KIND: ClassVar[str] = "hvd_sparse tuning"
    VERSION: ClassVar[int] = 1

    network: Network
    machine: Machine
    profile: Profile
    plan: Plan
    dense_seconds: float | None
    sparse_seconds: float | None
    sparse: bool
    settled_steps: int
    steps: int
    floor: float | None = None

    def __post_init__(self) -> None:
        records.check_finite(self)

    def renamed(self, names: Mapping[str, str]) -> SettledState:
        """Returns a copy with other layer names; `names` maps old names to new ones."""
        layers = tuple(replace(one, name=names[one.name]) for one in self.profile.layers)
        buckets = tuple(
            replace(one, layers=tuple(names[name] for name in one.layers))
            for one in self.plan.buckets
        )
        return replace(
            self,
            profile=replace(self.profile, layers=layers),
            plan=replace(self.plan, buckets=buckets),
        )

    def check(self, layers: Sequence[Layer], *, size: int) -> None:
        """Checks that the plan was made for these layers and so many ranks.

        Raises:
            InvalidArgumentError: It was not; the message names the difference.
        """
        if self.plan.size != size or self.network.size != size:
            raise InvalidArgumentError(
                f"the plan was made for {self.plan.size} ranks, and there are {size}"
            )
        planned = {
            (name, numel)
            for bucket in self.plan.buckets
            for name, numel in zip(bucket.layers, bucket.numels, strict=True)
        }
        here = {(layer.name, layer.numel) for layer in layers}
        if planned != here:
            odd = sorted(planned ^ here)[0]
            raise InvalidArgumentError(
                f"the plan was made for other layers: '{odd[0]}' ({odd[1]}) is not in both"
            )
