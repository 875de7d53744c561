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
        self._next: dict[str, torch.Tensor] = {}  # if the step is committed

    def __bool__(self) -> bool:
        """Whether velocities are wanted."""
        return self._momentum > 0

    def join(self, slot: Slot, work: torch.Tensor, factor: float) -> None:
        """Makes of a copy of a gradient what travels in its place.

        Args:
            slot: The slot of the gradient, which is not changed.
            work: float32 or float64, flat, the copy.
            factor: Gradients are that many times a velocity: their loss scale.
        """
        velocity = self.tensors.get(slot.name)
        if velocity is None:
            velocity = torch.zeros(work.numel(), dtype=torch.float32, device=work.device)
            self.tensors[slot.name] = velocity
        following = velocity * self._momentum
        self._next[slot.name] = following.add_(slot.gradient().reshape(-1), alpha=1 / factor)
        work.add_(velocity, alpha=self._momentum * factor)

    def committed(self) -> None:
        """The step is applied: the gradients have joined their velocities. Cannot fail.

        A step that is refused leaves the velocities alone, as an optimizer does that skips it.
        """
        self.tensors.update(self._next)

    def load(self, velocities: Mapping[str, torch.Tensor]) -> None:
        """Takes over velocities, copied, in place of those that are here."""
        self.tensors = {name: velocity.clone() for name, velocity in velocities.items()}

    def release(self) -> None:
        """Makes ready for the next step."""
        self._next.clear()
