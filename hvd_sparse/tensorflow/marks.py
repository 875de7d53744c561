"""The user's marks of steps, which HVD_SPARSE_CHECK compares between ranks."""

from __future__ import annotations

from typing import Any

from hvd_sparse.tensorflow.registry import find_exchange


def mark_step(target: Any, mark: str) -> None:
    """Marks this rank's steps until the next call.

    With HVD_SPARSE_CHECK=1 all ranks must give the same mark to the same step, so a rank that
    skipped a step or a batch is detected in the first exchange after it. Otherwise, and before the
    first step, when there is no exchange yet, the call has no effect.

    Args:
        target: An optimizer from `hvd.DistributedOptimizer`; or the variables, in the order in
            which they were given to a tape from `hvd.DistributedGradientTape`.
        mark: Any text that is equal on all ranks, such as "epoch 3, batch 17".
    """
    exchange = find_exchange(target)
    if exchange is not None:
        exchange.mark(mark)
