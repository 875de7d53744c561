"""What horovod.torch.elastic.TorchState does with a sparse optimizer, beyond what it does with all.

commit      saves this rank's residuals with the optimizer's state, as state_dict() does
restore     takes them up again, for the exchange of the next ranks
sync        builds that exchange, and gives it what the ranks hold
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from horovod.common.exceptions import HostsUpdatedInterrupt

from hvd_sparse.state.inheritance import checked_policy
from hvd_sparse.torch.attachment import attachment_of, require_attachment


def elastic_residuals(optimizer: torch.optim.Optimizer, policy: str) -> None:
    """Says what becomes of residuals when ranks have come or gone; on all ranks alike.

    Args:
        optimizer: From `hvd.DistributedOptimizer` with a sparse compression.
        policy: "spread", the default: the sum of what the ranks hold is shared out among those of
            now, entry by entry to one after the other. "reset": what was not sent yet is lost.

    Raises:
        InvalidArgumentError: `policy` is neither, or the optimizer has no sparse compression.
    """
    require_attachment(optimizer).renewal.policy = checked_policy(policy)


def restore_optimizer(stock: Callable[..., Any], handler: Any) -> None:
    """OptimizerStateHandler.restore: the exchange may have failed, amid a step."""
    attachment = attachment_of(handler.value)
    if attachment is None:
        stock(handler)
        return
    with attachment.restoring():
        stock(handler)


def sync_optimizer(stock: Callable[..., Any], handler: Any) -> None:
    """OptimizerStateHandler.sync: no gradient is needed to build the exchange."""
    stock(handler)
    attachment = attachment_of(handler.value)
    if attachment is not None:
        attachment.renewal.renew()


def check_host_updates(stock: Callable[..., Any], elastic_state: Any) -> None:
    """TorchState.check_host_updates: a rank that is about to leave hands over what it holds."""
    try:
        stock(elastic_state)
    except HostsUpdatedInterrupt as interrupt:
        for handler in elastic_state._handlers.values():
            attachment = attachment_of(handler.value)
            if attachment is not None:
                attachment.renewal.pool()
                interrupt.skip_sync = False  # even if nobody joins: sync() builds the next exchange
        raise
