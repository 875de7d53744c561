"""The handle of Horovod's users."""

from __future__ import annotations

from hvd_sparse.pytorch.user_exchange import TorchExchange
from hvd_sparse.torch.host import HorovodHost


class Exchange(TorchExchange):
    """The exchange of the gradients of an optimizer from `hvd.DistributedOptimizer`.

        exchange = optimizer.exchange

    It stays valid when ranks come and go. It does not keep the optimizer alive.

    Args:
        optimizer: The optimizer. One without a sparse compression can be saved and loaded only.

    Raises:
        InvalidArgumentError: `optimizer` is no optimizer.
    """

    def _everyone(self, _: str) -> HorovodHost:
        return HorovodHost()
