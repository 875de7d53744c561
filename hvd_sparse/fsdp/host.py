"""The ranks of a mesh as hosts: those of one shard in all replicas, and those around them."""

from __future__ import annotations

import torch.distributed as dist

from hvd_sparse.ddp.host import GroupHost
from hvd_sparse.fsdp.groups import Mesh

# Groups of all ranks of a mesh, where these are not all ranks of the job.
_of_mesh: dict[tuple[int, ...], dist.ProcessGroup] = {}


class ShardHost(GroupHost):
    """The ranks that hold one shard, one for each replica; a TorchHost.

    Args:
        mesh: The mesh.
        call: The function that the user has called, in messages about ranks that do not.

    Attributes:
        mesh: The mesh.
    """

    def __init__(self, mesh: Mesh, *, call: str) -> None:
        super().__init__(mesh.mesh.get_group(mesh.replicate_dim), call=call)
        self.mesh = mesh

    def of_all_shards(self) -> GroupHost:
        """Returns the host of all ranks of the mesh."""
        ranks = tuple(self.mesh.ranks)
        if len(ranks) == dist.get_world_size():
            return GroupHost(call=self._call)
        if ranks not in _of_mesh:
            _of_mesh[ranks] = dist.new_group(list(ranks), use_local_synchronization=True)
        return GroupHost(_of_mesh[ranks], call=self._call)

    def of_this_replica(self) -> GroupHost | None:
        """Returns the host of the ranks that hold this replica's shards; None if it has one."""
        if self.mesh.shards == 1:
            return None
        return GroupHost(self.mesh.mesh.get_group(self.mesh.shard_dim), call=self._call)
