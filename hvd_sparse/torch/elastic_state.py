"""Extends horovod.torch.elastic.TorchState to sparse optimizers.

commit      lets ranks that take local steps meet, and saves this rank's residuals with the
            optimizer's state, as state_dict() does
restore     loads them again, for the exchange of the next ranks
sync        builds that exchange, and gives it the residuals that the ranks hold
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from horovod.common.exceptions import HostsUpdatedInterrupt

from hvd_sparse.pytorch.attachment import Attachment, attachment_of
from hvd_sparse.pytorch.local_steps import LocalSteps


def save(stock: Callable[..., Any], elastic_state: Any) -> None:
    """Wraps TorchState.save, which `commit` calls, on all ranks in the same step.

    Ranks that take local steps meet first, so that what is saved is equal on all ranks.
    """
    _meet(elastic_state)
    stock(elastic_state)


def restore_optimizer(stock: Callable[..., Any], handler: Any) -> None:
    """Wraps OptimizerStateHandler.restore; the exchange may have failed in the middle of a step."""
    attachment = attachment_of(handler.value)
    with nullcontext() if attachment is None else attachment.restoring():
        stock(handler)


def sync_optimizer(stock: Callable[..., Any], handler: Any) -> None:
    """Wraps OptimizerStateHandler.sync: builds the exchange without waiting for a gradient."""
    stock(handler)
    attachment = attachment_of(handler.value)
    if attachment is not None:
        attachment.renewal.renew()


def check_host_updates(stock: Callable[..., Any], elastic_state: Any) -> None:
    """Wraps TorchState.check_host_updates: before ranks leave, they meet and sum up residuals."""
    try:
        stock(elastic_state)
    except HostsUpdatedInterrupt as interrupt:
        _meet(elastic_state)
        for attachment in _attachments(elastic_state):
            attachment.renewal.pool()
            interrupt.skip_sync = False  # even if none joins: sync() builds the next exchange
        raise


def _meet(elastic_state: Any) -> None:
    """Ends intervals of local steps. Collective."""
    for attachment in _attachments(elastic_state):
        if isinstance(attachment.exchange, LocalSteps):
            attachment.exchange.meet()


def _attachments(elastic_state: Any) -> list[Attachment]:
    found = (attachment_of(handler.value) for handler in elastic_state._handlers.values())
    return [one for one in found if one is not None]
