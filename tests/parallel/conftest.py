"""Tests of hvd_sparse.torch that run on every rank at once."""

from __future__ import annotations

import pytest

from tests.framework_laws.fixtures import folder, several_ranks
from tests.on_devices import device, gpu
from tests.quick_measuring import quick_measuring
from tests.rank_guard import Horovod, hooks
from tests.verdict import plans_over_time, verdict

__all__ = [
    "device",
    "folder",
    "gpu",
    "plans_over_time",
    "quick_measuring",
    "several_ranks",
    "verdict",
]

globals().update(hooks(Horovod("horovod.torch")))


@pytest.fixture
def framework():
    """PyTorch, for the laws of tests/framework_laws."""
    from tests.parallel.torch_framework import Torch  # which needs hvd.init()

    return Torch()
