"""What the user knows of a step, for HVD_SPARSE_CHECK."""

from __future__ import annotations

from typing import Any

from hvd_sparse.tensorflow.registry import find_exchange


def mark_step(target: Any, mark: str) -> None:
    """Says at which step this rank is; until the next call, every step has this mark.

    With HVD_SPARSE_CHECK=1 all ranks must give the same mark to the same step, and a rank that left
    out a step, or a batch, is found in the first exchange after it. Without, nothing happens; nor
    before the first step, when there is no exchange yet.

    Args:
        target: An optimizer from `hvd.DistributedOptimizer`; or the variables, in the order in
            which a tape from `hvd.DistributedGradientTape` was given them.
        mark: Anything that is equal on all ranks: "epoch 3, batch 17".
    """
    exchange = find_exchange(target)
    if exchange is not None:
        exchange.mark(mark)
