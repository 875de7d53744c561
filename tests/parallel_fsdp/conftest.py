"""Tests of hvd_sparse.fsdp that run on every rank at once, under torchrun."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from tests.framework_laws.fixtures import folder, several_ranks
from tests.parallel_ddp.conftest import pytest_cmdline_main
from tests.parallel_ddp.groups import TorchDistributed
from tests.quick_measuring import quick_measuring
from tests.rank_guard import hooks
from tests.verdict import plans_over_time, verdict

__all__ = [
    "folder",
    "plans_over_time",
    "pytest_cmdline_main",
    "quick_measuring",
    "several_ranks",
    "verdict",
]

globals().update(hooks(TorchDistributed()))


@pytest.fixture
def framework():
    """FSDP2 for the laws of tests/framework_laws: with two shards from 4 ranks on."""
    from tests.parallel_fsdp.fsdp_framework import Fsdp

    size = dist.get_world_size()
    return Fsdp(shards=2 if size >= 4 else 1)


# Words in names of laws whose values FSDP2 cannot add up over two shards.
_LARGEST = ("overflows", "cannot_hold")


@pytest.fixture(autouse=True)
def _mesh_of_all(request):
    """Skips laws of some ranks alone where there are shards, and of sums that FSDP2 overflows."""
    if dist.get_world_size() >= 4:
        if "ranks" in request.fixturenames:
            pytest.skip("the ranks of a set hold different shards")
        if any(word in request.node.name for word in _LARGEST):
            pytest.skip("the sum over the shards is infinite already")
