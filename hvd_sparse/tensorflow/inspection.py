"""What users can ask about the exchange of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.step_stats import StepStats
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
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


def residual_variables(target: Any) -> Sequence[Any]:
    """The exchange's state: what this rank has yet to send, and what sparsifiers remember.

    Save them for each rank (`tf.train.Checkpoint(residuals=list(...))`), and assign them after the
    first step of a resumed run, or lose what was not sent: see docs/tensorflow.md.

    Args:
        target: As of `stats`.

    Raises:
        InvalidArgumentError: Nothing of it was exchanged yet.
    """
    exchange: GradientExchange | None = find_exchange(target)
    if exchange is None:
        raise InvalidArgumentError("residual_variables() needs an exchange, and there is none yet")
    return exchange.variables
