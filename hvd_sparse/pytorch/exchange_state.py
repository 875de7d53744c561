"""State that an exchange keeps from step to step."""

from __future__ import annotations

from collections.abc import Container, ItemsView, Mapping, Sequence

import torch

from hvd_sparse import _core
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.exchange.step_buckets import OpGradients
from hvd_sparse.pytorch.slots import buffer_of

_Parts = Mapping[str, torch.Tensor]


class Memory:
    """The tensors of a state.

    Args:
        numels: Entries of the residual of each parameter.
        numels_with_velocity: Entries of each velocity.
        units: Names of the units of selection.
        device: Device of residual and velocity.

    Attributes:
        residual: float32, flat.
        velocity: float32, flat.
        states: The sparsifier's states, float32, [units, 4], on the CPU.
        residuals: Views of `residual`, by parameter.
        velocities: Views of `velocity`, by parameter.
        states_of_units: Views of `states`, by unit of selection.
    """

    def __init__(
        self,
        numels: Mapping[str, int],
        numels_with_velocity: Mapping[str, int],
        units: Sequence[str],
        device: torch.device,
    ) -> None:
        self.residual, self.residuals = _zeros(numels, device)
        self.velocity, self.velocities = _zeros(numels_with_velocity, device)
        self.states = torch.zeros(len(units), 4, dtype=torch.float32, device="cpu")
        self.states_of_units = dict(zip(units, self.states, strict=True))

    def load(self, residuals: _Parts, velocities: _Parts) -> None:
        """Restores residuals and velocities; missing ones become zero."""
        _load(self.residuals, residuals)
        _load(self.velocities, velocities)


class ExchangeState:
    """This rank's residual, velocity and sparsifier states in one exchange.

    Each is one flat tensor, with the parts of all layers in the order of the ops; a new plan leaves
    them where they are.

    Args:
        ops: The ops whose gradients can be sent sparse.
        dense: Parameters that are always sent dense and have a velocity.
        momentum: True if `ops` and `dense` have velocities.
        device: Device of the gradients.

    Attributes:
        now: The present state.
    """

    def __init__(
        self,
        ops: Sequence[OpGradients],
        dense: Sequence[Layer],
        *,
        momentum: bool,
        device: torch.device,
    ) -> None:
        layers = [layer for op in ops for layer in op.layers]
        self._layout = (
            _numels(layers),
            _numels([*layers, *dense]) if momentum else {},
            [unit for op in ops for unit in op.units],
            device,
        )
        self.now = Memory(*self._layout)
        self._former: Memory | None = None

    def remember(self) -> None:
        """Copies the state before a step, so that `undo` can restore it after the step."""
        former, now = self._former or Memory(*self._layout), self.now
        former.residual.copy_(now.residual)
        former.velocity.copy_(now.velocity)
        former.states.copy_(now.states)
        self._former = former

    def forget(self) -> None:
        """Frees what `remember` has copied."""
        self._former = None

    @property
    def remembers(self) -> bool:
        """True if the state before the last step can be restored."""
        return self._former is not None

    def undo(self, names: Container[str]) -> None:
        """Restores residual and velocity of parameters to what they were before the last step.

        What the sparsifier remembers is restored if that concerns all parameters.

        Args:
            names: The parameters.
        """
        former, now = self._former, self.now
        assert former is not None
        for parts, before in (
            (now.residuals, former.residuals),
            (now.velocities, former.velocities),
        ):
            for name, part in parts.items():
                if name in names:
                    part.copy_(before[name])
        if all(name in names for name in {**now.residuals, **now.velocities}):
            now.states.copy_(former.states)

    def residuals(self) -> ItemsView[str, torch.Tensor]:
        """Returns this rank's residual by parameter: float32, flat, a view."""
        return self.now.residuals.items()

    def velocities(self) -> ItemsView[str, torch.Tensor]:
        """Returns this rank's velocity by parameter, if momentum is corrected; like `residuals`."""
        return self.now.velocities.items()

    def sparsifier_states(self) -> ItemsView[str, torch.Tensor]:
        """Returns the sparsifier's state of each unit of selection: float32, [4], a view."""
        return self.now.states_of_units.items()

    def load(self, residuals: _Parts, sparsifier_states: _Parts, velocities: _Parts) -> None:
        """Restores what these methods returned; parts that were not saved become zero."""
        self.now.load(residuals, velocities)
        _load(self.now.states_of_units, sparsifier_states)

    def adopt(self, other: ExchangeState) -> None:
        """Takes over all but the sparsifier's states from another layout of the same parameters."""
        self.load(other.now.residuals, {}, other.now.velocities)
        if other._former is not None:
            self._former = Memory(*self._layout)
            self._former.load(other._former.residuals, other._former.velocities)

    def reset(self) -> None:
        """Drops residuals and velocities, between two steps, perhaps on this rank alone."""
        for memory in (self.now, self._former):
            if memory is not None:
                memory.load({}, {})


def _numels(layers: Sequence[Layer]) -> dict[str, int]:
    """Returns the entries of each parameter, whose slices follow each other."""
    numels: dict[str, int] = {}
    for layer in layers:
        numels[layer.parameter] = numels.get(layer.parameter, 0) + layer.numel
    return numels


def _zeros(
    numels: Mapping[str, int], device: torch.device
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Returns memory all of which every step touches, which is faster in huge pages; its parts."""
    flat = torch.empty(sum(numels.values()), dtype=torch.float32, device=device)
    if device.type == "cpu" and flat.numel() > 0:
        _core.prefer_huge_pages(buffer_of(flat))
    parts = torch.split(flat.zero_(), list(numels.values()))
    return flat, dict(zip(numels, parts, strict=True))


def _load(parts: _Parts, saved: _Parts) -> None:
    for name, part in parts.items():
        if name in saved:
            part.copy_(saved[name])
        else:
            part.zero_()
