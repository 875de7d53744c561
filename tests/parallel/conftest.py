"""Tests of hvd_sparse.torch that run on every rank at once."""

from __future__ import annotations

from tests.on_devices import device, gpu
from tests.quick_measuring import quick_measuring
from tests.rank_guard import hooks
from tests.verdict import verdict

__all__ = ["device", "gpu", "quick_measuring", "verdict"]

globals().update(hooks("horovod.torch"))
