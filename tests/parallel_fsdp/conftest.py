"""Tests of hvd_sparse.fsdp that run on every rank at once, under torchrun."""

from __future__ import annotations

import pytest

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
    """FSDP2 on a mesh of one shard, for the laws of tests/framework_laws."""
    from tests.parallel_fsdp.fsdp_framework import Fsdp

    return Fsdp()
