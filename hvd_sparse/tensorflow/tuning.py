"""The user's access to the tuning of an adaptive compression."""

from __future__ import annotations

from typing import Any

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.tensorflow.registry import find_exchange
from hvd_sparse.tuning.tuner import Tuning


def tuning(target: Any) -> Tuning | None:
    """Returns the tuning of an adaptive compression; the same on all ranks.

    Args:
        target: An optimizer from `hvd.DistributedOptimizer`; or the variables, in the order in
            which they were given to a tape from `hvd.DistributedGradientTape`.

    Returns:
        The network, the machine, the profile of the model, the plan, and the measured times of
        dense and sparse steps, as far as they are known; `tuning(...).profile.save(path)` writes
        the file that `hvd-sparse plan` reads. None before the first step, if the compression is not
        adaptive, and if there is no other rank.
    """
    exchange = find_exchange(target)
    return None if exchange is None or exchange.tuner is None else exchange.tuner.tuning


def replan(target: Any) -> None:
    """Measures the network anew, and all else in the next steps, for a new plan. Collective.

    Call it between two steps.

    Args:
        target: The optimizer or the variables; see `tuning`.

    Raises:
        InvalidArgumentError: Nothing was exchanged yet, the compression is not adaptive, or a step
            is in flight.
        ExchangeFailedError: Another rank ended the exchange, or died.
    """
    exchange = find_exchange(target)
    if exchange is None or exchange.tuner is None:
        raise InvalidArgumentError(
            "replan() needs an exchange with an adaptive compression, such as LAGS, that has taken "
            "a step"
        )
    exchange.refuse_if_ended()
    exchange.replan()
