"""Masks, through hvd.DistributedOptimizer."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.errors import UnsupportedError
from hvd_sparse.torch import Dense
from tests.framework_laws import laws_in, masks
from tests.parallel.torch_ranks import Toy, distribute

globals().update(laws_in(masks))


@pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")
def test_steps_that_do_not_wait_cannot_have_masks():
    model = Toy()
    optimizer = distribute(model, Dense(), wait_in_forward=True)
    with pytest.raises(UnsupportedError, match="wait_in_forward"):
        optimizer.exchange.set_masks({"bias": torch.ones(7, dtype=torch.bool)})
