"""Objects that the documentation's code for DistributedDataParallel assumes; setups import them."""

from __future__ import annotations

import horovod.torch as hvd
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.ddp import LAGS, attach
from tests.docs.torch_stage import small_model, train


def start() -> None:
    """Initialises torch.distributed between the ranks, which mpirun has started for Horovod."""
    if dist.is_initialized():
        return
    store, port = None, 0
    if hvd.rank() == 0:  # listens on a port that nothing else has
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = store.port
    port = int(hvd.broadcast(torch.tensor([port]), root_rank=0, name="docs.port"))
    store = store or dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=hvd.rank(), world_size=hvd.size())


def mesh_of_replicas() -> DeviceMesh:
    """Returns a mesh of all ranks with one shard."""
    start()
    size = (dist.get_world_size(), 1)
    return init_device_mesh("cpu", size, mesh_dim_names=("replicate", "shard"))


def attached(*, steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Returns a wrapped model and its attached optimizer after some steps."""
    start()
    model = DistributedDataParallel(small_model())
    optimizer = torch.optim.AdamW(model.parameters())
    attach(model, optimizer, LAGS)
    train(model, optimizer, steps)
    return model, optimizer
