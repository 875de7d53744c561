"""Momentum of the gradients that travel dense, where it is corrected for those that do not.

Nothing of them is delayed, so there is nothing to mask: each rank's velocity is that of momentum
SGD, and so is their average. A layer keeps its velocity when it goes from dense to sparse, or back.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hvd_sparse.torch.slots import Slot


class DenseVelocities:
    """By layer, this rank's momentum * velocity + gradient.

    Args:
        momentum: In [0, 1); 0: there are no velocities.

    Attributes:
        tensors: By layer, float32, flat, without loss scale.
    """

    def __init__(self, momentum: float) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._momentum = momentum
        self._joined: list[tuple[Slot, float]] = []

    def __bool__(self) -> bool:
        """Whether velocities are wanted."""
        return self._momentum > 0

    def join(self, slot: Slot, work: torch.Tensor, factor: float) -> None:
        """Makes of a copy of a gradient what travels in its place.

        Args:
            slot: Of the gradient, which stays as it is until the step is committed.
            work: float32 or float64, flat, the copy.
            factor: Gradients are that many times a velocity: their loss scale.
        """
        velocity = self.tensors.get(slot.name)
        if velocity is None:
            velocity = torch.zeros(work.numel(), dtype=torch.float32, device=work.device)
            self.tensors[slot.name] = velocity
        work.add_(velocity, alpha=self._momentum * factor)
        self._joined.append((slot, factor))

    def committed(self) -> None:
        """The step is applied: the gradients, which hold no result yet, join their velocities.

        A step that is refused leaves the velocities alone, as an optimizer does that skips it.
        """
        for slot, factor in self._joined:
            velocity = self.tensors[slot.name]
            velocity.mul_(self._momentum).add_(slot.gradient().reshape(-1), alpha=1 / factor)

    def load(self, velocities: Mapping[str, torch.Tensor]) -> None:
        """Takes over velocities, copied, in place of those that are here."""
        self.tensors = {name: velocity.clone() for name, velocity in velocities.items()}

    def release(self) -> None:
        """Makes ready for the next step."""
        self._joined.clear()
