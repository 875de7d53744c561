"""What is equal on ranks at the same step, beside what they exchange; for HVD_SPARSE_CHECK=1.

A rank that leaves out a whole step looks like a slow one: it then exchanges its next step where the
others exchange this one. Its learning rate tells, where that follows the number of the batch or of
the epoch; and the user knows at which step a rank is.
"""

from __future__ import annotations

import torch


def describe(optimizer: torch.optim.Optimizer, mark: str) -> str:
    """The learning rates of an optimizer, in ascending order, and the user's mark.

    Args:
        optimizer: About to be given averages.
        mark: From `mark_step`; empty if there is none.
    """
    rates = sorted({float(group.get("lr", 0.0)) for group in optimizer.param_groups})
    text = f"learning rate {', '.join(map(repr, rates))}"
    return f"{text}, marked '{mark}'" if mark else text
