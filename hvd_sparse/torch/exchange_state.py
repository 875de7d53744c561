"""State that an exchange keeps from step to step, for dense and sparse layers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from hvd_sparse.planning.plan import BucketChoice
from hvd_sparse.torch.dense import DenseReducer
from hvd_sparse.torch.launcher import Launcher
from hvd_sparse.torch.slots import Slot


class ExchangeState:
    """This rank's residuals, velocities and sparsifier states in one exchange.

    Args:
        sparse: Holds the state of the layers in its buckets.
        dense: Holds the state of all other layers.
        slots: Slots by name, of the layers that can be sparse.
        device: Device of the gradients.
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
        """Yields this rank's residuals: layer and float32, flat. Layers left out have none."""
        yield from self._dense.residuals.items()
        yield from self._dense.rounding_errors.items()
        for bucket in self._sparse.buckets:
            yield from bucket.residuals()

    def waiting(self) -> list[str]:
        """Returns the dense layers whose residuals wait until the layer is sparse.

        The list is the same on all ranks. The residuals of other dense layers are added to their
        next gradients.
        """
        return [] if self._dense.may_have_residuals else sorted(self._dense_layers())

    def sparsifier_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the sparsifier's states: unit of selection and float32, [4]."""
        for bucket in self._sparse.buckets:
            yield from bucket.sparsifier_states()

    def velocities(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields this rank's velocities, if momentum is corrected: parameter and float32, flat."""
        yield from self._dense.velocities.tensors.items()
        for bucket in self._sparse.buckets:
            yield from bucket.velocities()

    def load(
        self,
        residuals: Mapping[str, torch.Tensor],
        sparsifier_states: Mapping[str, torch.Tensor],
        velocities: Mapping[str, torch.Tensor] | None = None,
        waiting: Collection[str] = (),
    ) -> None:
        """Restores, between two steps, what these methods returned; the rest becomes zero.

        All ranks call it, each with its own values.
        """
        velocities = velocities or {}
        for bucket in self._sparse.buckets:
            bucket.load(residuals, sparsifier_states, velocities)
        dense = self._dense_layers()
        waiting = dense.intersection(waiting)
        self._dense.load(
            self._some(residuals, dense - waiting),
            self._some(residuals, waiting),
            may_have_residuals=dense != waiting,
        )
        sparse = self._slots.keys() - dense
        self._dense.velocities.load(self._some(velocities, velocities.keys() - sparse))

    def reset(self) -> None:
        """Drops residuals and velocities, between two steps, perhaps on this rank alone."""
        for bucket in self._sparse.buckets:
            bucket.load({}, dict(bucket.sparsifier_states()), {})
        self._dense.reset()

    def move_to(self, choices: Sequence[BucketChoice]) -> None:
        """Changes the buckets, but keeps the residuals; between two steps, on all ranks alike."""
        residuals, velocities = dict(self.residuals()), dict(self.velocities())
        self._sparse.replace_buckets(
            [choice for choice in choices if not choice.dense], self._slots
        )
        self.load(residuals, {}, velocities)

    def _dense_layers(self) -> set[str]:
        """Returns the layers that can be sparse, but are dense now."""
        return {name for name, slot in self._slots.items() if slot not in self._sparse}

    def _some(
        self, tensors: Mapping[str, torch.Tensor], names: Collection[str]
    ) -> dict[str, torch.Tensor]:
        """Returns the tensors of these names, on the device of the gradients."""
        return {name: one.to(self._device) for name, one in tensors.items() if name in names}
