"""What a tuner has settled on, for checkpoints: a resumed run goes on with the same plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hvd_sparse import records
from hvd_sparse.buckets import Layer
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.plan import Plan
from hvd_sparse.planning.profile import Machine, Profile


@dataclass(frozen=True, kw_only=True)
class Settled(records.Saved):
    """The end of a comparison, and how long ago that was.

    Attributes:
        network: As measured.
        machine: As measured.
        profile: What the plan was made from.
        plan: What sparse steps follow.
        dense_seconds: A measured dense step, if known.
        sparse_seconds: A measured sparse step, if known.
        sparse: Which of the two was faster.
        settled_steps: Steps from one comparison to the next.
        steps: Of these, those that are over.
        floor: What no density of the plan falls below, in a warm-up that of the time when it was
            made; None in older files: that of now.
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

    def renamed(self, names: Mapping[str, str]) -> Settled:
        """The same for layers of other names, given by those that they have here."""
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
        """Refuses what was settled for another model, or other ranks.

        Raises:
            InvalidArgumentError: Names the difference.
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
