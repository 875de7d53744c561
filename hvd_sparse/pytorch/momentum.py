"""Momentum that each rank applies to its own gradients, before error feedback.

An Adam that applies its momentum to what a sparse exchange delivers learns less per step than with
dense gradients (docs/learning.md). So its momentum is moved: the core keeps a velocity for each
parameter,

    velocity = beta1 * velocity + (1 - beta1) * gradient        residual += velocity

and while the optimizer takes its step, its own beta1 is 0. The optimizer then finds in `grad` the
average of smoothed gradients, which have a gradient's magnitude: clipping, and weight decay that is
added to them, act as before. Its second moment is that of these averages.

SGD keeps its momentum: masked velocities make its steps shorter, and it learns less with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from hvd_sparse.compression import Compression
from hvd_sparse.compression_checks import AUTO
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.pytorch.owner import weakly

_Group = dict[str, Any]

# Optimizers whose momentum is moved. Others keep theirs, even if a setting is called `betas`.
_MOVED = (
    torch.optim.Adam,  # AdamW is one
    torch.optim.AdamW,  # in older versions it is not
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
)
_OWN_VELOCITY = "exp_avg"  # in the optimizer's state of a parameter


class Momentum:
    """The momentum of one exchange: the compression's, or the optimizer's, moved; or none.

    A moved momentum is read from the parameter groups in every step, so schedules act on it.

    Args:
        optimizer: The optimizer that takes the steps.
        compression: The user's compression.
        size: Number of ranks; a single one leaves the optimizer its momentum.

    Attributes:
        exists: True if ranks have velocities.
        moved: True if the momentum is the optimizer's.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, compression: Compression, *, size: int
    ) -> None:
        self._owner = weakly(optimizer)
        self._given = compression.own_momentum
        self._hidden: list[tuple[_Group, Any]] = []
        wanted = compression.momentum_correction == AUTO and size > 1
        self.moved = wanted and _can_move(optimizer)
        self.exists = self.moved or self._given > 0

    def of_step(self) -> tuple[float, float]:
        """Returns momentum and dampening of the step that begins.

        Raises:
            InvalidArgumentError: Parameter groups have come to differ in their momentum.
        """
        if not self.moved:
            return self._given, 0.0
        momenta = _momenta_of(self._owner())
        if len(momenta) > 1:
            raise InvalidArgumentError(
                f"the parameter groups of {type(self._owner()).__name__} must have one beta1, "
                f"which the exchange applies to all gradients, got {sorted(momenta)}: set "
                "momentum_correction=0 to leave it to the optimizer"
            )
        momentum = momenta.pop() if momenta else 0.0
        return momentum, momentum

    def hide(self) -> None:
        """Sets the optimizer's own momentum to 0 for a step, if it was moved."""
        self.show()
        if not self.moved:
            return
        for group in self._owner().param_groups:
            betas = group["betas"]
            self._hidden.append((group, betas))
            group["betas"] = (0 * betas[0], betas[1])

    def show(self) -> None:
        """Restores what `hide` has changed."""
        for group, betas in self._hidden:
            group["betas"] = betas
        self._hidden.clear()

    def put_into(
        self, state_dict: dict[str, Any], velocities: Iterable[tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        """Makes a state dict hold this rank's velocities where the optimizer has its own momentum.

        The optimizer then keeps its momentum wherever the state is loaded, with or without a
        compression.

        Args:
            state_dict: A state dict of the optimizer, whose states are replaced and not changed.
            velocities: Each parameter with its velocity, float32, flat.
        """
        if not self.moved:
            return
        params = [param for group in self._owner().param_groups for param in group["params"]]
        numbers = {id(param): number for number, param in enumerate(params)}
        states = dict(state_dict["state"])
        for param, velocity in velocities:
            number = numbers.get(id(param))
            if number in states:  # there is none before the first step
                own = velocity.to(param.dtype, copy=True).view(param.shape)
                states[number] = {**states[number], _OWN_VELOCITY: own}
        state_dict["state"] = states

    def velocity_of(self, param: torch.Tensor) -> torch.Tensor | None:
        """Returns the velocity that continues the optimizer's own momentum; None if it has none.

        An optimizer's own momentum is the average of the ranks' velocities, and the same on all
        ranks: so it can be every rank's.
        """
        own = self._owner().state.get(param, {}).get(_OWN_VELOCITY) if self.moved else None
        return None if own is None else own.detach().to(torch.float32).flatten()


def _can_move(optimizer: torch.optim.Optimizer) -> bool:
    if not isinstance(optimizer, _MOVED):
        return False
    momenta = _momenta_of(optimizer)
    return len(momenta) == 1 and 0 < min(momenta) < 1


def _momenta_of(optimizer: torch.optim.Optimizer) -> set[float]:
    return {float(group["betas"][0]) for group in optimizer.param_groups if group["params"]}
