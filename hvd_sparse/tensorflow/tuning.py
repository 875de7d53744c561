"""What the user can ask of an adaptive compression."""

from __future__ import annotations

from typing import Any

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.tensorflow.registry import find_exchange
from hvd_sparse.tuning.tuner import Tuning


def tuning(target: Any) -> Tuning | None:
    """What an adaptive compression has found out: the same on all ranks.

    Args:
        target: An optimizer from `hvd.DistributedOptimizer`; or the variables, in the order in
            which a tape from `hvd.DistributedGradientTape` was given them.

    Returns:
        The network, the machine, the profile of the model, the plan, and the measured times of
        dense and sparse steps, as far as they are known; `tuning(...).profile.save(path)` keeps
        what `hvd-sparse plan` reads. None before the first step, where the compression is not
        adaptive, and where there is nobody to exchange with.
    """
    exchange = find_exchange(target)
    return None if exchange is None or exchange.tuner is None else exchange.tuner.tuning


def replan(target: Any) -> None:
    """Measures the network anew, and in the next steps all else, and makes a new plan. Collective.

    To be called between two steps.

    Args:
        target: As of `tuning`.

    Raises:
        InvalidArgumentError: Nothing was exchanged yet, or the compression is not adaptive; or a
            step is under way.
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
