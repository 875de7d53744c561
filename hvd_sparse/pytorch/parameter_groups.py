"""Finds the group of a parameter, even if the user removes, merges and reorders groups."""

from __future__ import annotations

from typing import Any

import torch

from hvd_sparse.pytorch.owner import weakly


class ParameterGroups:
    """The groups of one optimizer, found by the identity of their parameters.

    They are searched once per step, when a parameter is first looked up.

    Args:
        optimizer: The optimizer, whose groups may change between two steps.

    Attributes:
        of_class: The name of the optimizer's class.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._owner = weakly(optimizer)
        self.of_class = type(optimizer).__name__
        self._group_of: dict[int, dict[str, Any]] = {}

    def of(self, param: torch.Tensor) -> dict[str, Any] | None:
        """Returns the group that holds a parameter in this step; None if there is none."""
        if not self._group_of:
            self._group_of = {
                id(one): group for group in self._owner().param_groups for one in group["params"]
            }
        return self._group_of.get(id(param))

    def release(self) -> None:
        """Prepares for the next step."""
        self._group_of.clear()
