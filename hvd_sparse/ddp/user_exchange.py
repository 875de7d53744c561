"""The handle of DistributedDataParallel's users."""

from __future__ import annotations

import torch

from hvd_sparse.ddp.host import GroupHost
from hvd_sparse.ddp.modules import module_of
from hvd_sparse.pytorch.user_exchange import TorchExchange


class Exchange(TorchExchange):
    """The exchange of the gradients of an optimizer that was attached.

        exchange = attach(model, optimizer, LAGS)  # or optimizer.exchange, from then on

    It stays valid when the optimizer is attached again. It does not keep the optimizer alive.

    Args:
        optimizer: The optimizer. One that was not attached can be saved and loaded only.

    Raises:
        InvalidArgumentError: `optimizer` is no optimizer.
    """

    def _everyone(self, call: str) -> GroupHost:
        return GroupHost(call=call)

    def _module_of(self, model: torch.nn.Module) -> torch.nn.Module:
        return module_of(model)
