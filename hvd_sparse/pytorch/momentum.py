"""Momentum that each rank applies to its own gradients, before error feedback.

An optimizer that applies its momentum to what a sparse exchange delivers learns less per step than
with dense gradients (docs/learning.md). So its momentum is moved: the core keeps a velocity for
each parameter,

    velocity = momentum * velocity + (1 - momentum) * gradient        residual += velocity

and while the optimizer takes its step, its own momentum is 0. The optimizer then finds in `grad`
the average of smoothed gradients, which have a gradient's magnitude: clipping, and weight decay
that is added to them, act as before.

Adam's second moment is that of these averages, and velocities of delivered entries become 0. SGD's
stay, since masked ones learn less; its momentum adds gradients up, so its learning rate is 1 / (1 -
momentum) times as large for the step, for gradient and weight decay alike.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from hvd_sparse.compression.parts import MOVE
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.pytorch.parameters import NamedParameters, ParameterGroups, weakly
from hvd_sparse.pytorch.settings import Settings
from hvd_sparse.pytorch.shards import like, shard_of

_Group = dict[str, Any]


class _Form(ABC):
    """The form in which optimizers have a momentum.

    Attributes:
        optimizers: The classes. Others keep their momentum, even if a setting is called `betas`.
        setting: Name of the momentum for messages.
        own: Name of the velocity in the optimizer's state of a parameter.
        is_whole_state: True if that state holds nothing else.
        masks: True if the velocity of a delivered entry becomes 0.
    """

    optimizers: ClassVar[tuple[type[torch.optim.Optimizer], ...]]
    setting: ClassVar[str]
    own: ClassVar[str]
    is_whole_state: ClassVar[bool]
    masks: ClassVar[bool]

    @abstractmethod
    def momentum_of(self, group: _Group) -> float:
        """Returns the momentum of a parameter group."""

    @abstractmethod
    def growth(self, group: _Group, state: Mapping[str, Any]) -> float:
        """Returns how many times as large as the velocity that acts the optimizer's own is.

        Args:
            group: The parameter's group.
            state: The optimizer's state of the parameter; empty before its first step.
        """

    @abstractmethod
    def hidden(self, group: _Group) -> _Group:
        """Returns the settings with which a group takes steps whose momentum is the exchange's."""


# Optimizers that divide a gradient's first moment by its size.
ADAMS = (
    torch.optim.Adam,  # AdamW is one
    torch.optim.AdamW,  # in older versions it is not
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
)


class _OfAdam(_Form):
    optimizers = ADAMS
    setting, own, is_whole_state, masks = "beta1", "exp_avg", False, True

    def momentum_of(self, group: _Group) -> float:
        return float(group["betas"][0])

    def growth(self, group: _Group, state: Mapping[str, Any]) -> float:
        """Adam divides its own by this before it acts, since it has begun at zero."""
        if "mu_product" in state:  # NAdam's momentum has a schedule of its own
            return 1 - float(state["mu_product"])
        return 1 - self.momentum_of(group) ** float(state["step"]) if state else 1.0

    def hidden(self, group: _Group) -> _Group:
        return {"betas": (0 * group["betas"][0], group["betas"][1])}


class _OfSgd(_Form):
    optimizers = (torch.optim.SGD,)
    setting, own, is_whole_state, masks = "momentum", "momentum_buffer", True, False

    def momentum_of(self, group: _Group) -> float:
        return float(group["momentum"])

    def growth(self, group: _Group, state: Mapping[str, Any]) -> float:
        return (1 - float(group["dampening"])) / (1 - float(group["momentum"]))

    def hidden(self, group: _Group) -> _Group:
        return {"momentum": 0.0, "lr": self.growth(group, {}) * group["lr"]}


_FORMS = (_OfAdam(), _OfSgd())


class Momentum:
    """The momentum of one exchange: the compression's, or the optimizer's, moved; or none.

    A moved momentum is read from the parameter groups in every step, so schedules act on it.

    While the momentum is moved, the optimizer's own, in its state, is not kept up. So velocities
    `begin` from it where the optimizer's state has come from outside (as it is when the exchange is
    built, loaded, or broadcast), and it is given back where others read it: in state dicts, for a
    broadcast, and when the exchange ends.

    Args:
        optimizer: The optimizer that takes the steps.
        settings: The user's settings.
        size: Number of ranks; a single one leaves the optimizer its momentum.

    Attributes:
        exists: True if ranks have velocities.
        moved: True if the momentum is the optimizer's.
        masks: True if the velocity of a delivered entry becomes 0.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, settings: Settings, *, size: int) -> None:
        compression = settings.compression
        self._owner = weakly(optimizer)
        self._given = compression.feedback.own_momentum
        self._velocities_per_own = 1 if settings.reduction.averages else size
        self._began_at: int | None = None
        self._hidden: list[tuple[_Group, _Group]] = []  # groups, and their own settings
        wanted = compression.feedback.momentum == MOVE and size > 1
        self._form = _form_of(optimizer) if wanted else None
        self.moved = self._form is not None
        self.masks = self._form is None or self._form.masks
        self.exists = self.moved or self._given > 0

    def of_step(self) -> tuple[float, float]:
        """Returns momentum and dampening of the step that begins.

        Raises:
            InvalidArgumentError: Parameter groups have come to differ in their momentum.
        """
        if self._form is None:
            return self._given, 0.0
        self._show()  # a step that failed has left it hidden, or is asked for its gradients again
        momenta = _momenta_of(self._owner(), self._form)
        if len(momenta) > 1:
            raise InvalidArgumentError(
                f"the parameter groups of {type(self._owner()).__name__} must have one "
                f"{self._form.setting}, which the exchange applies to all gradients, got "
                f"{sorted(momenta)}: set Feedback(momentum='keep') to leave it to the optimizer"
            )
        momentum = momenta.pop() if momenta else 0.0
        return momentum, momentum

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Sets the optimizer's own momentum to 0 within the context, if it was moved."""
        self._show()
        if self._form is not None:
            for group in self._owner().param_groups:
                settings = self._form.hidden(group)
                self._hidden.append((group, {name: group[name] for name in settings}))
                group.update(settings)
        try:
            yield
        finally:
            self._show()

    def _show(self) -> None:
        """Gives the optimizer back the settings that are hidden, if there are any."""
        for group, settings in self._hidden:
            group.update(settings)
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
        params = [param for group in self._owner().param_groups for param in group["params"]]
        numbers = {id(param): number for number, param in enumerate(params)}
        states = dict(state_dict["state"])
        for param, own in self._owns(
            velocities, lambda param: states.get(numbers.get(id(param)), {})
        ):
            number = numbers[id(param)]
            states[number] = {**states.get(number, {}), **own}
        state_dict["state"] = states

    @torch.no_grad()
    def give_back(self, velocities: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Makes the optimizer's own momentum that of this rank's velocities, as in `put_into`."""
        state = self._owner().state
        for param, own in self._owns(velocities, lambda param: state.get(param, {})):
            state[param].update(own)

    def _owns(
        self,
        velocities: Iterable[tuple[torch.Tensor, torch.Tensor]],
        state_of: Callable[[torch.Tensor], Mapping[str, Any]],
    ) -> Iterator[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
        """Yields parameters with what their state has to hold in place of the velocity."""
        if self._form is None:
            return
        groups = ParameterGroups(self._owner())
        for param, velocity in velocities:
            group, state = groups.of(param), state_of(param)
            # Other state begins with the optimizer's first step.
            if group is not None and (state or self._form.is_whole_state):
                summed = velocity.view(shard_of(param).shape) * (
                    self._velocities_per_own * _sign_of(group)
                )
                own = (summed + self._decay(group, param)) * self._form.growth(group, state)
                yield param, {self._form.own: like(own.to(param.dtype), param)}

    @torch.no_grad()
    def begin(self, parameters: Mapping[str, torch.Tensor], step: int) -> dict[str, torch.Tensor]:
        """Returns the velocities, by name, that go on where the optimizer's own momentum is.

        An optimizer's own momentum is the average, or the sum, of the ranks' velocities, and the
        same on all ranks: so it, or its share, can be every rank's.

        Args:
            parameters: The parameters of the exchange, by name.
            step: Number of steps that the exchange has taken.
        """
        self._began_at = None
        if self._form is None:
            return {}
        groups = ParameterGroups(self._owner())
        found: dict[str, torch.Tensor] = {}
        for name, param in parameters.items():
            state, group = self._owner().state.get(param, {}), groups.of(param)
            own = state.get(self._form.own)
            growth = 0.0 if own is None or group is None else self._form.growth(group, state)
            if own is not None and group is not None and growth:
                summed = shard_of(own).detach().to(torch.float32) / growth - self._decay(
                    group, param
                )
                found[name] = summed.flatten() / (self._velocities_per_own * _sign_of(group))
        if found:
            self._began_at = step
        return found

    def describe(self, named: NamedParameters) -> dict[str, str]:
        """Returns, by name, what must be equal on all ranks of the momentum that they take over."""
        found = self.begin(dict(named), 0)
        checksum = 0
        for name, velocity in found.items():
            checksum = zlib.crc32(velocity.cpu().numpy().data, zlib.crc32(name.encode(), checksum))
        shown = f"of {len(found)} parameters, with checksum {checksum:08x}" if found else "none yet"
        return {"the momentum in the optimizer's state": shown}

    def has_begun_at(self, step: int) -> bool:
        """Returns true if the velocities began from the optimizer's own after so many steps."""
        return self._began_at == step

    def _decay(self, group: _Group, param: torch.Tensor) -> torch.Tensor | float:
        """Returns the weight decay that the optimizer has in its momentum, and velocities do not.

        The optimizer adds it to what is delivered, where it acts with its momentum at once.
        """
        decoupled = group.get(
            "decoupled_weight_decay", isinstance(self._owner(), torch.optim.AdamW)
        )
        decay = 0.0 if decoupled else float(group["weight_decay"])
        return decay * shard_of(param).detach().to(torch.float32) if decay else 0.0


def _form_of(optimizer: torch.optim.Optimizer) -> _Form | None:
    """Returns the form of an optimizer's momentum if it can be moved."""
    for form in _FORMS:
        if isinstance(optimizer, form.optimizers):
            momenta = _momenta_of(optimizer, form)
            return form if len(momenta) == 1 and 0 < min(momenta) < 1 else None
    return None


def _momenta_of(optimizer: torch.optim.Optimizer, form: _Form) -> set[float]:
    return {form.momentum_of(group) for group in optimizer.param_groups if group["params"]}


def _sign_of(group: _Group) -> int:
    """Returns the sign of an optimizer's own momentum for velocities of gradients."""
    return -1 if group.get("maximize") else 1
