"""Training with FSDP2: a replica on each node, whose ranks hold its shards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from learning_methods import Exchanging, OverGloo, Setup
from modes import compression_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Sharded(OverGloo):
    """FSDP2 as it is.

    Args:
        setup: The starting point. Each block of the model is a group of parameters.
        reduces_in: Type in which it reduces gradients.
        alone: True if replicas exchange nothing: computing and sharding alone.
    """

    def __init__(self, setup: Setup, *, reduces_in: str = "float32", alone: bool = False) -> None:
        super().__init__(setup)
        shards = int(os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"])
        size = (dist.get_world_size() // shards, shards)
        self._mesh = init_device_mesh("cpu", size, mesh_dim_names=("replicate", "shard"))
        options = {
            "mesh": self._mesh["shard"] if alone else self._mesh,
            "mp_policy": MixedPrecisionPolicy(reduce_dtype=getattr(torch, reduces_in)),
        }
        self.is_local = alone
        for block in self.model.blocks:
            fully_shard(block, **options)
        fully_shard(self.model, **options)
        self.optimizer = setup.task.optimizer(self.model.parameters(), setup.rate)

    def weights(self) -> list[torch.Tensor]:
        self.model.reshard()  # after a forward pass alone, the root has whole parameters
        return [weight.detach().full_tensor() for weight in self.model.parameters()]

    @contextmanager
    def averaged_weights(self) -> Iterator[nn.Module]:
        self.model.reshard()
        shards = [weight.to_local().detach() for weight in self.model.parameters()]
        own = [shard.clone() for shard in shards]
        for shard in shards:
            dist.all_reduce(shard, group=self._mesh.get_group("replicate"))
            shard.div_(self._mesh.size(0))
        yield self.model
        self.model.reshard()
        for shard, before in zip(shards, own, strict=True):
            shard.copy_(before)


class ShardedExchange(Exchanging, Sharded):
    """FSDP2 with a compression of hvd_sparse between the replicas.

    Args:
        setup: The starting point.
        mode: The compression, as modes.compression_of reads it.
    """

    def __init__(self, setup: Setup, *, mode: str) -> None:
        from hvd_sparse.fsdp import attach

        super().__init__(setup)
        compression = compression_of(mode)
        self.is_local = compression.is_local
        attach(self.model, self.optimizer, compression)
