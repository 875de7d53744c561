"""Sparse gradient exchange for DistributedDataParallel, under torch.distributed; without Horovod.

    from hvd_sparse.ddp import LAGS, attach

    model = DistributedDataParallel(model)
    exchange = attach(model, optimizer, LAGS)

The options of compressions, and what an `Exchange` has, are those of hvd_sparse.torch.
"""

from hvd_sparse.compression import (
    LAGS,
    SBC,
    Dense,
    GaussianK,
    GTopK,
    ThreeLC,
    TopK,
)
from hvd_sparse.ddp.attaching import attach
from hvd_sparse.ddp.functions import sparse_allreduce
from hvd_sparse.ddp.user_exchange import Exchange
from hvd_sparse.pytorch.dropback import DropBack

__all__ = [
    "LAGS",
    "SBC",
    "Dense",
    "DropBack",
    "Exchange",
    "GTopK",
    "GaussianK",
    "ThreeLC",
    "TopK",
    "attach",
    "sparse_allreduce",
]
