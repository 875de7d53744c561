"""Describes a step, so that ranks with HVD_SPARSE_CHECK=1 find one that is at another step.

A rank that leaves out a whole step looks like a slow one: it then exchanges its next step while the
others exchange this one. Its learning rate differs, if that depends on the number of the batch or
of the epoch; so does the user's mark.
"""

from __future__ import annotations

import torch


def describe(optimizer: torch.optim.Optimizer, mark: str) -> str:
    """Returns the learning rates of an optimizer, in ascending order, and the user's mark.

    Args:
        optimizer: The optimizer whose gradients are exchanged.
        mark: The mark from `mark_step`; empty if there is none.
    """
    rates = sorted({float(group.get("lr", 0.0)) for group in optimizer.param_groups})
    text = f"learning rate {', '.join(map(repr, rates))}"
    return f"{text}, marked '{mark}'" if mark else text
