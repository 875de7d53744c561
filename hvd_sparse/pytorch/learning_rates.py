"""Residuals follow the learning rate, so that delayed entries count as when they were computed.

LAGS accumulates learning rate times gradient. Gradients handed to a stock optimizer carry no
learning rate, so the residual is multiplied by old rate / new rate when the rate changes.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import torch

from hvd_sparse.compression import Compression
from hvd_sparse.pytorch.parameters import ParameterGroups
from hvd_sparse.pytorch.slots import Slot


class LearningRates:
    """Remembers the learning rate at which each parameter's residual was accumulated.

    A rate of 0 changes nothing: the change is measured from the last rate above 0 to the next. A
    parameter that is in no group has a rate of 0.

    Args:
        optimizer: The optimizer that takes the steps.
        compression: Says whether to rescale: always, never, or by default.

    Attributes:
        groups: The optimizer's parameter groups, as they are in this step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, compression: Compression) -> None:
        self.groups = ParameterGroups(optimizer)
        wanted = compression.feedback.rescale
        self._wanted = wanted if isinstance(wanted, bool) else None
        self._default = compression.rescales_by_default and _is_plain_sgd(optimizer)
        self._forgetting = compression.feedback.decay
        self._last: dict[str, float] = {}

    @property
    def followed(self) -> bool:
        """True if the residual is rescaled when a learning rate changes."""
        return self._default if self._wanted is None else self._wanted

    def clipping_seen(self) -> None:
        """Stops rescaling by default: the user changes gradients between exchange and step."""
        self._default = False
        if not self.followed:
            self._last.clear()  # noted in the last backward pass, and no longer needed

    def decays(self, slots: Sequence[Slot]) -> list[float]:
        """Returns the factor of each slot's residual, applied before this step's gradient."""
        if not self.followed:
            return [self._forgetting] * len(slots)
        return [self._forgetting * self._decay(slot) for slot in slots]

    def _decay(self, slot: Slot) -> float:
        rate = float((self.groups.of(slot.param) or {}).get("lr", 0.0))
        if rate <= 0:
            return 1.0
        last = self._last.get(slot.name, rate)
        self._last[slot.name] = rate
        return last / rate

    def state(self) -> dict[str, float]:
        """Returns the rates at which the residuals were accumulated, by parameter."""
        return dict(self._last)

    def load(self, rates: dict[str, float]) -> None:
        """Restores what `state` returned."""
        self._last = dict(rates)

    def undo(self, former: Mapping[str, float], names: Container[str]) -> None:
        """Restores what `state` returned before a step, for some parameters."""
        for name in self._last:
            if name in names:
                self._last[name] = former.get(name, self._last[name])


def _is_plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Returns true if a step is learning rate times gradient.

    With momentum it is not: entries that were scaled up for a small rate enter the momentum, which
    still applies them when the rate is large again.
    """
    return isinstance(optimizer, torch.optim.SGD) and not any(
        group.get("momentum", 0) for group in optimizer.param_groups
    )
