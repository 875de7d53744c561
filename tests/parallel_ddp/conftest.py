"""Tests of hvd_sparse.ddp that run on every rank at once, under torchrun."""

from __future__ import annotations

import os

import pytest

from tests.framework_laws.fixtures import folder, several_ranks
from tests.parallel_ddp.groups import TorchDistributed
from tests.quick_measuring import quick_measuring
from tests.rank_guard import hooks
from tests.verdict import plans_over_time, verdict

__all__ = ["folder", "plans_over_time", "quick_measuring", "several_ranks", "verdict"]


globals().update(hooks(TorchDistributed()))


def pytest_cmdline_main(config):
    """Leaves the report to rank 0: torchrun gives all ranks one command."""
    if os.environ.get("RANK", "0") != "0":
        config.option.xmlpath = None


@pytest.fixture
def framework():
    """DistributedDataParallel, for the laws of tests/framework_laws."""
    from tests.parallel_ddp.ddp_framework import Ddp

    return Ddp()
