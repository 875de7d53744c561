"""The user's functions for adaptive compressions: tuning and replan."""

from __future__ import annotations

import torch

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.pytorch.attachment import attachment_of, require_attachment
from hvd_sparse.tuning.tuner import Tuning


def tuning(optimizer: torch.optim.Optimizer) -> Tuning | None:
    """Returns the measurements and the plan of an adaptive compression; the same on all ranks.

    Args:
        optimizer: An optimizer with a sparse compression.

    Returns:
        The network, the machine, the profile of the model, the plan, and the measured times of
        dense and sparse steps, as far as they are known; `tuning(optimizer).profile.save(path)`
        saves what `hvd-sparse plan` reads. None if the compression is not adaptive, or this rank
        has no peers.

    Raises:
        InvalidArgumentError: The optimizer has no sparse compression.
    """
    exchange = require_attachment(optimizer).exchange
    return None if exchange is None or exchange.tuner is None else exchange.tuner.tuning


def replan(optimizer: torch.optim.Optimizer) -> None:
    """Measures the network now, and all else in the next steps, for a new plan. Collective.

    Args:
        optimizer: An optimizer with an adaptive compression.

    Raises:
        InvalidArgumentError: The compression is not adaptive.
        GradientInFlightError: Gradients have arrived but are not exchanged yet.
        ExchangeFailedError: Another rank ended the exchange, or died.
    """
    attachment = attachment_of(optimizer)
    exchange = None if attachment is None else attachment.exchange
    if attachment is not None and (exchange is None or exchange.world.size == 1):
        return
    if attachment is None or exchange is None or exchange.tuner is None:
        raise InvalidArgumentError("replan() needs an adaptive compression, such as LAGS")
    exchange.core.check()
    attachment.refuse_if_busy("replan()")
    exchange.replan()
