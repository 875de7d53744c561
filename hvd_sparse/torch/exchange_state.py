"""What an exchange remembers from step to step, whichever way a layer travels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from hvd_sparse.plan import BucketChoice
from hvd_sparse.torch.dense import DenseReducer
from hvd_sparse.torch.launcher import Launcher
from hvd_sparse.torch.slots import Slot


class ExchangeState:
    """Residuals and the like of one exchange, on this rank.

    Args:
        sparse: Holds those of the layers in its buckets.
        dense: Holds those of all others.
        slots: By name, of the layers that can travel sparse.
        device: Of the gradients.
    """

    def __init__(
        self,
        sparse: Launcher,
        dense: DenseReducer,
        *,
        slots: Mapping[str, Slot],
        device: torch.device,
    ) -> None:
        self._sparse = sparse
        self._dense = dense
        self._slots = slots
        self._device = device

    def residuals(self) -> Iterator[tuple[str, torch.Tensor]]:
        """By layer, float32, flat: what this rank has yet to send; zero where there is none."""
        yield from self._dense.residuals.items()
        yield from self._dense.rests.items()
        for bucket in self._sparse.buckets:
            yield from bucket.residuals()

    def memories(self) -> Iterator[tuple[str, torch.Tensor]]:
        """By unit of selection, float32, [4]: what the sparsifier remembers of it."""
        for bucket in self._sparse.buckets:
            yield from bucket.memories()

    def velocities(self) -> Iterator[tuple[str, torch.Tensor]]:
        """By parameter, float32, flat: this rank's velocity, where momentum is corrected."""
        yield from self._dense.velocities.tensors.items()
        for bucket in self._sparse.buckets:
            yield from bucket.velocities()

    def load(
        self,
        residuals: Mapping[str, torch.Tensor],
        memories: Mapping[str, torch.Tensor],
        velocities: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Takes up, between two steps, what these methods gave; what lacks is zero.

        On all ranks alike, but for what each of them takes up.
        """
        velocities = velocities or {}
        for bucket in self._sparse.buckets:
            bucket.load(residuals, memories, velocities)
        sparse = {slot.name for bucket in self._sparse.buckets for slot in bucket.slots}
        self._dense.load(
            {
                name: residual.to(self._device)
                for name, residual in residuals.items()
                if name not in sparse
            }
        )
        self._dense.velocities.load(
            {
                name: velocity.to(self._device)
                for name, velocity in velocities.items()
                if name not in sparse
            }
        )

    def reset(self) -> None:
        """Forgets it all, between two steps, perhaps on this rank alone."""
        for bucket in self._sparse.buckets:
            bucket.load({}, {}, {})
        self._dense.reset()

    def move_to(self, choices: Sequence[BucketChoice]) -> None:
        """Between two steps, on all ranks alike: other buckets, the same residuals."""
        residuals, velocities = dict(self.residuals()), dict(self.velocities())
        self._sparse.take_up([choice for choice in choices if not choice.dense], self._slots)
        self.load(residuals, {}, velocities)
