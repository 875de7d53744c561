"""State that an exchange keeps from step to step."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from hvd_sparse import _core
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.exchange.step_buckets import OpGradients
from hvd_sparse.exchange.steps import Steps
from hvd_sparse.pytorch.slots import buffer_of


class _Memory(NamedTuple):
    """The tensors of a state: residual and velocity are flat, the sparsifier's are [units, 4]."""

    residual: torch.Tensor
    velocity: torch.Tensor
    states: torch.Tensor


class ExchangeState:
    """This rank's residual, velocity and sparsifier states in one exchange.

    Each is one flat tensor, with the parts of all layers in the order of the ops; a new plan leaves
    them where they are.

    Args:
        ops: The ops whose gradients can be sent sparse.
        dense: Parameters that are always sent dense and have a velocity.
        momentum: True if `ops` and `dense` have velocities.
        device: Device of the gradients.
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
        self._numels = _numels(layers)
        self._numels_with_velocity = _numels([*layers, *dense]) if momentum else {}
        self._units = [unit for op in ops for unit in op.units]
        self._now = _Memory(
            _empty(sum(self._numels.values()), device).zero_(),
            _empty(sum(self._numels_with_velocity.values()), device).zero_(),
            torch.zeros(len(self._units), 4, dtype=torch.float32, device="cpu"),
        )
        self._former: _Memory | None = None
        self._room = torch.zeros(0, dtype=torch.float32, device=device)

    def begin(
        self, steps: Steps, *, loss_scale: float, momentum: float, dampening: float, stream: int
    ) -> bool:
        """Begins a step on this memory; see `Steps.begin`."""
        residual = self._now.residual
        if self._room.numel() != steps.room:
            self._room = torch.empty(steps.room, dtype=torch.float32, device=residual.device)
        return steps.begin(
            residual=buffer_of(residual),
            states=buffer_of(self._now.states),
            velocity=buffer_of(self._now.velocity) if self._numels_with_velocity else None,
            room=buffer_of(self._room),
            loss_scale=loss_scale,
            momentum=momentum,
            dampening=dampening,
            stream=stream,
        )

    def remember(self) -> None:
        """Copies the state before a step, so that `undo` can restore it after the step."""
        if self._former is None:
            now = self._now
            self._former = _Memory(
                _empty(now.residual.numel(), now.residual.device),
                _empty(now.velocity.numel(), now.velocity.device),
                torch.empty_like(now.states),
            )
        for former, one in zip(self._former, self._now, strict=True):
            former.copy_(one)

    def remember_as(self, other: ExchangeState) -> None:
        """Remembers what another layout of the same parameters does."""
        if other._former is None:
            return
        self.remember()
        assert self._former is not None
        _load(self._residuals(self._former), dict(other._residuals(other._former)))
        _load(self._velocities(self._former), dict(other._velocities(other._former)))

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
        assert self._former is not None
        for of in (self._residuals, self._velocities):
            former = dict(of(self._former))
            for name, part in of(self._now):
                if name in names:
                    part.copy_(former[name])
        if all(name in names for name in {**self._numels, **self._numels_with_velocity}):
            self._now.states.copy_(self._former.states)

    def residuals(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields this rank's residual by parameter: float32, flat, a view."""
        return self._residuals(self._now)

    def velocities(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields this rank's velocity by parameter, if momentum is corrected; like `residuals`."""
        return self._velocities(self._now)

    def sparsifier_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the sparsifier's state of each unit of selection: float32, [4], a view."""
        return zip(self._units, self._now.states, strict=True)

    def load(
        self,
        residuals: Mapping[str, torch.Tensor],
        sparsifier_states: Mapping[str, torch.Tensor],
        velocities: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Restores what these methods yielded; parts that were not saved become zero."""
        _load(self.residuals(), residuals)
        _load(self.sparsifier_states(), sparsifier_states)
        _load(self.velocities(), velocities or {})

    def reset(self) -> None:
        """Drops residuals and velocities, between two steps, perhaps on this rank alone."""
        for memory in (self._now, self._former):
            if memory is not None:
                memory.residual.zero_()
                memory.velocity.zero_()

    def _residuals(self, memory: _Memory) -> Iterator[tuple[str, torch.Tensor]]:
        return _parts(memory.residual, self._numels)

    def _velocities(self, memory: _Memory) -> Iterator[tuple[str, torch.Tensor]]:
        return _parts(memory.velocity, self._numels_with_velocity)


def _numels(layers: Sequence[Layer]) -> dict[str, int]:
    """Returns the entries of each parameter, whose slices follow each other."""
    numels: dict[str, int] = {}
    for layer in layers:
        numels[layer.parameter] = numels.get(layer.parameter, 0) + layer.numel
    return numels


def _parts(flat: torch.Tensor, numels: Mapping[str, int]) -> Iterator[tuple[str, torch.Tensor]]:
    return zip(numels, torch.split(flat, list(numels.values())), strict=True)


def _load(parts: Iterator[tuple[str, torch.Tensor]], saved: Mapping[str, torch.Tensor]) -> None:
    for name, part in parts:
        if name in saved:
            part.copy_(saved[name])
        else:
            part.zero_()


def _empty(numel: int, device: torch.device) -> torch.Tensor:
    """Returns memory all of which every step touches, which is faster in huge pages."""
    memory = torch.empty(numel, dtype=torch.float32, device=device)
    if device.type == "cpu" and numel > 0:
        _core.prefer_huge_pages(buffer_of(memory))
    return memory
