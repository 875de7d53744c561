"""Refers from an exchange to its optimizer, without keeping the optimizer alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from hvd_sparse.errors import HvdSparseError


def weakly(optimizer: torch.optim.Optimizer) -> Callable[[], torch.optim.Optimizer]:
    """Returns a weak getter of `optimizer`, which raises HvdSparseError once that is gone."""
    reference = weakref.ref(optimizer)

    def owner() -> torch.optim.Optimizer:
        alive = reference()
        if alive is None:
            raise HvdSparseError(
                "the optimizer of these gradients no longer exists: keep a reference to it for as "
                "long as you train"
            )
        return alive

    return owner
