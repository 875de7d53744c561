"""Sparse gradient exchange between the replicas of a model that FSDP2 has sharded.

    from hvd_sparse.fsdp import LAGS, attach

    mesh = init_device_mesh("cuda", (nodes, gpus), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
    exchange = attach(model, optimizer, LAGS)

The options of compressions, and what an `Exchange` has, are those of hvd_sparse.ddp; checkpoints
are those of torch.distributed.checkpoint. It takes PyTorch 2.7 or newer.
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
from hvd_sparse.fsdp.attaching import attach
from hvd_sparse.fsdp.user_exchange import Exchange

__all__ = [
    "LAGS",
    "SBC",
    "Dense",
    "Exchange",
    "GTopK",
    "GaussianK",
    "ThreeLC",
    "TopK",
    "attach",
]
