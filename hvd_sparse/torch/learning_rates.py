"""The residual follows the learning rate, so that what is sent late counts as when it was computed.

LAGS accumulates learning rate times gradient. Gradients handed to a stock optimizer carry no
learning rate, so the residual is multiplied by old rate / new rate when the rate changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvd_sparse.compression import Compression
from hvd_sparse.torch.parameter_groups import ParameterGroups
from hvd_sparse.torch.slots import Slot


class LearningRates:
    """Remembers at which learning rate each parameter's residual was accumulated.

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
        self._wanted = compression.rescale_residual
        self._default = compression.rescales_by_default and _is_plain_sgd(optimizer)
        self._last: dict[str, float] = {}

    @property
    def followed(self) -> bool:
        """Whether the residual is rescaled when a learning rate changes."""
        return self._default if self._wanted is None else self._wanted

    def clipping_seen(self) -> None:
        """Gradients are changed between exchange and step: by default, no longer rescale."""
        self._default = False
        if not self.followed:
            self._last.clear()  # of the backward pass before; nobody goes on from it

    def decays(self, slots: Sequence[Slot]) -> list[float]:
        """What to multiply each slot's residual by before this step's gradient is added."""
        if not self.followed:
            return [1.0] * len(slots)
        return [self._decay(slot) for slot in slots]

    def _decay(self, slot: Slot) -> float:
        rate = float((self.groups.of(slot.param) or {}).get("lr", 0.0))
        if rate <= 0:
            return 1.0
        last = self._last.get(slot.name, rate)
        self._last[slot.name] = rate
        return last / rate

    def state(self) -> dict[str, float]:
        """The rates at which the residuals were accumulated, by parameter."""
        return dict(self._last)

    def load(self, rates: dict[str, float]) -> None:
        """Takes up what `state` returned."""
        self._last = dict(rates)


def _is_plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Whether steps are learning rate times gradient.

    With momentum they are not: at a small rate it takes up entries that were multiplied for that
    rate, and steps on with them when the rate is large again.
    """
    return isinstance(optimizer, torch.optim.SGD) and not any(
        group.get("momentum", 0) for group in optimizer.param_groups
    )
