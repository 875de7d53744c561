"""Statistics of the exchange of gradients."""

from __future__ import annotations

from typing import Any

from hvd_sparse.stats.step_stats import StepStats
from hvd_sparse.tensorflow.registry import find_exchange


def stats(target: Any) -> StepStats | None:
    """Returns the costs of the last step on this rank.

    Args:
        target: An optimizer from `hvd.DistributedOptimizer`; or the variables, in the order in
            which they were given to a tape from `hvd.DistributedGradientTape`.

    Returns:
        Density asked and reached, bytes, and seconds of selection and exchange, bucket by bucket.
        `wait_seconds` is nan: the graph waits, and other operations run meanwhile. None before the
        first step, and if there is nothing to exchange (one rank).
    """
    exchange = find_exchange(target)
    return None if exchange is None else exchange.stats()
