"""Process groups of torch.distributed, in the form in which the laws know process sets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

# Backends of the group of all ranks: "gloo", or "cpu:gloo,cuda:nccl".
BACKEND = os.environ.get("HVD_SPARSE_TEST_BACKEND", "gloo")


@dataclass(frozen=True)
class Group:
    """Some ranks.

    Attributes:
        ranks: Their numbers in the job.
        group: The process group; None on a rank that does not belong to it.
    """

    ranks: tuple[int, ...]
    group: Any

    def size(self) -> int:
        """Returns how many they are."""
        return len(self.ranks)

    def included(self) -> bool:
        """Returns true if this process is one of them."""
        return self.group is not None


class TorchDistributed:
    """torch.distributed as the library that runs the ranks; see tests/rank_guard.py."""

    def start(self) -> None:
        dist.init_process_group(BACKEND)

    def rank(self) -> int:
        return dist.get_rank()

    def size(self) -> int:
        return dist.get_world_size()

    def everyone(self) -> Group:
        return Group(tuple(range(dist.get_world_size())), dist.group.WORLD)

    def add_set(self, ranks: Sequence[int]) -> Group:
        group = dist.new_group(list(ranks))
        return Group(tuple(ranks), group if dist.get_rank() in ranks else None)

    def remove_set(self, ranks: Group) -> None:
        if ranks.included():
            dist.destroy_process_group(ranks.group)
