"""Parameters that are sharded by FSDP2: DTensors, of which each rank exchanges its own shard."""

from __future__ import annotations

import torch


def shard_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's shard of a DTensor, in its memory; any other tensor as it is."""
    shard: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return shard


def like(shard: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Returns the tensor of which this is a rank's shard, if `whole` is a DTensor.

    Args:
        shard: A tensor of the shape of `shard_of(whole)`.
        whole: A tensor whose shards lie on the same ranks.
    """
    if shard_of(whole) is whole:
        return shard
    from torch.distributed.tensor import DTensor

    assert isinstance(whole, DTensor)
    return DTensor.from_local(
        shard,
        whole.device_mesh,
        whole.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )
