"""The optimizer that moves the common weights of ranks that take local steps."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hvd_sparse.compression.local_steps import Outer


class OuterSteps:
    """The steps of the outer optimizer, the same on all ranks.

    Args:
        outer: Its options.

    Attributes:
        has_momentum: True if it has a momentum.
    """

    def __init__(self, outer: Outer) -> None:
        self._options = outer
        self._momenta: dict[str, torch.Tensor] = {}
        self.has_momentum = outer.momentum > 0

    def step(
        self, common: Mapping[str, torch.Tensor], averages: Mapping[str, torch.Tensor]
    ) -> None:
        """Moves common weights by average differences, in place; may change the averages."""
        if not averages:
            return
        outer, steps = self._options, averages
        if outer.momentum:
            steps = {name: self._with_momentum(name, one) for name, one in averages.items()}
        moved = [common[name] for name in steps]
        torch._foreach_sub_(moved, list(steps.values()), alpha=outer.lr)

    def _with_momentum(self, name: str, average: torch.Tensor) -> torch.Tensor:
        outer = self._options
        momentum = self._momenta.get(name)
        if momentum is None:
            momentum = self._momenta[name] = average.to(wide(average.dtype), copy=True)
        else:
            momentum.mul_(outer.momentum).add_(average)
        return average.add(momentum, alpha=outer.momentum) if outer.nesterov else momentum

    def state(self) -> dict[str, torch.Tensor]:
        """Returns a copy of the momenta, by parameter."""
        return copies_of(self._momenta)

    def load(self, momenta: dict[str, torch.Tensor]) -> None:
        """Restores what `state` returned; takes over its memory."""
        self._momenta = momenta


def wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the type of common weights and outer momenta of parameters of a type."""
    return torch.promote_types(dtype, torch.float32)


def widened(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns tensors in the types of common weights."""
    return [one.to(wide(one.dtype)) for one in tensors]


def copies_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns copies of tensors by name."""
    return {name: one.clone() for name, one in tensors.items()}
