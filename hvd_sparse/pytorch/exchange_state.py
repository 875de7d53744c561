"""State that an exchange keeps from step to step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from hvd_sparse import _core
from hvd_sparse.buckets import Layer
from hvd_sparse.exchange.step_buckets import OpGradients
from hvd_sparse.exchange.steps import Steps
from hvd_sparse.pytorch.slots import buffer_of


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
        self._residual = _zeros(sum(self._numels.values()), device)
        self._velocity = _zeros(sum(self._numels_with_velocity.values()), device)
        self._states = torch.zeros(len(self._units), 4, dtype=torch.float32, device="cpu")
        self._room = torch.zeros(0, dtype=torch.float32, device=device)

    def begin(
        self, steps: Steps, *, loss_scale: float, momentum: float, dampening: float, stream: int
    ) -> bool:
        """Begins a step on this memory; see `Steps.begin`."""
        if self._room.numel() != steps.room:
            self._room = torch.empty(steps.room, dtype=torch.float32, device=self._residual.device)
        return steps.begin(
            residual=buffer_of(self._residual),
            states=buffer_of(self._states),
            velocity=buffer_of(self._velocity) if self._numels_with_velocity else None,
            room=buffer_of(self._room),
            loss_scale=loss_scale,
            momentum=momentum,
            dampening=dampening,
            stream=stream,
        )

    def residuals(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields this rank's residual by parameter: float32, flat, a view."""
        return _parts(self._residual, self._numels)

    def velocities(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields this rank's velocity by parameter, if momentum is corrected; like `residuals`."""
        return _parts(self._velocity, self._numels_with_velocity)

    def sparsifier_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the sparsifier's state of each unit of selection: float32, [4], a view."""
        return zip(self._units, self._states, strict=True)

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
        self._residual.zero_()
        self._velocity.zero_()


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


def _zeros(numel: int, device: torch.device) -> torch.Tensor:
    """Returns an empty residual. Every step touches all of it, which is faster in huge pages."""
    if device.type != "cpu" or numel == 0:
        return torch.zeros(numel, dtype=torch.float32, device=device)
    memory = torch.empty(numel, dtype=torch.float32, device=device)
    _core.prefer_huge_pages(buffer_of(memory))
    return memory.zero_()
