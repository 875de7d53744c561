"""Velocities of dense gradients, for compressions with momentum correction.

No entry of a dense gradient is delayed, so none is masked: each rank's velocity is that of momentum
SGD, and so is their average. A layer keeps its velocity when it changes from dense to sparse, or
back.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hvd_sparse.torch.slots import Slot


class DenseVelocities:
    """This rank's velocity of each layer: momentum * velocity + gradient.

    Args:
        momentum: In [0, 1); 0 for no velocities.

    Attributes:
        tensors: Velocities by layer: float32, flat, without loss scale.
    """

    def __init__(self, momentum: float) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._momentum = momentum
        self._next: dict[str, torch.Tensor] = {}  # take effect when the step is committed

    def __bool__(self) -> bool:
        """Returns true if velocities are used."""
        return self._momentum > 0

    def join(self, slot: Slot, work: torch.Tensor, factor: float) -> None:
        """Adds momentum * velocity to a copy of a gradient, which is sent in its place.

        Args:
            slot: The slot of the gradient, which is not changed.
            work: The copy: float32 or float64, flat.
            factor: Ratio of gradients to velocities, such as the loss scale.
        """
        velocity = self.tensors.get(slot.name)
        if velocity is None:
            velocity = torch.zeros(work.numel(), dtype=torch.float32, device=work.device)
            self.tensors[slot.name] = velocity
        following = velocity * self._momentum
        self._next[slot.name] = following.add_(slot.gradient().reshape(-1), alpha=1 / factor)
        work.add_(velocity, alpha=self._momentum * factor)

    def committed(self) -> None:
        """Replaces velocities by those of the step, which is applied. Cannot fail.

        A refused step leaves the velocities alone, like an optimizer that skips it.
        """
        self.tensors.update(self._next)

    def load(self, velocities: Mapping[str, torch.Tensor]) -> None:
        """Replaces the velocities by copies of these."""
        self.tensors = {name: velocity.clone() for name, velocity in velocities.items()}

    def release(self) -> None:
        """Prepares for the next step."""
        self._next.clear()
