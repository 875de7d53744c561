"""Which group of an optimizer a parameter is in, while users remove, merge and reorder groups."""

from __future__ import annotations

from typing import Any

import torch

from hvd_sparse.torch.owner import weakly


class ParameterGroups:
    """The groups of one optimizer, found by the identity of their parameters.

    They are looked through once a step, when a parameter is first asked for.

    Args:
        optimizer: Its groups may change between two steps.

    Attributes:
        of_class: The name of the optimizer's class.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._owner = weakly(optimizer)
        self.of_class = type(optimizer).__name__
        self._group_of: dict[int, dict[str, Any]] = {}

    def of(self, param: torch.Tensor) -> dict[str, Any] | None:
        """The group that holds a parameter in this step; None if there is none."""
        if not self._group_of:
            self._group_of = {
                id(one): group for group in self._owner().param_groups for one in group["params"]
            }
        return self._group_of.get(id(param))

    def release(self) -> None:
        """Makes ready for the next step."""
        self._group_of.clear()
