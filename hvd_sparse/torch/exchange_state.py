"""What an exchange remembers from step to step, whichever way a layer travels."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from hvd_sparse.planning.plan import BucketChoice
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

    def waiting(self) -> list[str]:
        """Layers that travel dense, and whose residuals wait until they travel sparse.

        Alike on all ranks; those of the others that travel dense join their next gradients.
        """
        return [] if self._dense.owed else sorted(self._dense_layers())

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
        waiting: Collection[str] = (),
    ) -> None:
        """Takes up, between two steps, what these methods gave; what lacks is zero.

        On all ranks alike, but for what each of them takes up.
        """
        velocities = velocities or {}
        for bucket in self._sparse.buckets:
            bucket.load(residuals, memories, velocities)
        dense = self._dense_layers()
        waiting = dense.intersection(waiting)
        self._dense.load(
            self._some(residuals, dense - waiting),
            self._some(residuals, waiting),
            owed=dense != waiting,
        )
        sparse = self._slots.keys() - dense
        self._dense.velocities.load(self._some(velocities, velocities.keys() - sparse))

    def reset(self) -> None:
        """Forgets residuals and velocities, between two steps, perhaps on this rank alone."""
        for bucket in self._sparse.buckets:
            bucket.load({}, dict(bucket.memories()), {})
        self._dense.reset()

    def move_to(self, choices: Sequence[BucketChoice]) -> None:
        """Between two steps, on all ranks alike: other buckets, the same residuals."""
        residuals, velocities = dict(self.residuals()), dict(self.velocities())
        self._sparse.take_up([choice for choice in choices if not choice.dense], self._slots)
        self.load(residuals, {}, velocities)

    def _dense_layers(self) -> set[str]:
        """Those that can travel sparse, and do not."""
        return {name for name, slot in self._slots.items() if slot not in self._sparse}

    def _some(
        self, tensors: Mapping[str, torch.Tensor], names: Collection[str]
    ) -> dict[str, torch.Tensor]:
        """Those of these names, on the device of the gradients."""
        return {name: one.to(self._device) for name, one in tensors.items() if name in names}
