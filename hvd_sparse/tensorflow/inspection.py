"""What the exchange of gradients cost."""

from __future__ import annotations

from typing import Any

from hvd_sparse.stats.step_stats import StepStats
from hvd_sparse.tensorflow.registry import find_exchange


def stats(target: Any) -> StepStats | None:
    """What the last step cost, as this rank saw it.

    Args:
        target: An optimizer from `hvd.DistributedOptimizer`; or the variables, in the order in
            which a tape from `hvd.DistributedGradientTape` was given them.

    Returns:
        Density asked and reached, bytes, and seconds of selection and exchange, bucket by bucket.
        `wait_seconds` is nan: the graph waits, and other operations run meanwhile. None before the
        first step, and where there is nothing to exchange (one rank).
    """
    exchange = find_exchange(target)
    return None if exchange is None else exchange.stats()
