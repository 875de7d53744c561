"""Masks, through hvd.DistributedOptimizer."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.errors import UnsupportedError
from hvd_sparse.torch import Dense
from tests.framework_laws import laws_in, masks
from tests.parallel.torch_ranks import (
    Toy,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
    take_over_from_rank_0,
)

globals().update(laws_in(masks))


@pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")
def test_steps_that_do_not_wait_cannot_have_masks():
    model = Toy()
    optimizer = distribute(model, Dense(), wait_in_forward=True)
    with pytest.raises(UnsupportedError, match="wait_in_forward"):
        optimizer.exchange.set_masks({"bias": torch.ones(7, dtype=torch.bool)})


@pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")
@pytest.mark.parametrize("others", ["get it broadcast", "load it without residuals"])
def test_ranks_that_take_over_the_state_of_rank_0_have_its_masks(others):
    mask = torch.arange(7) % 3 == 0
    model, twin = Toy(), Toy()
    optimizer, resumed = (distribute(one, Dense(values="int8")) for one in (model, twin))
    optimizer.exchange.set_masks({"bias": mask})
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    take_over_from_rank_0(resumed, optimizer.state_dict(), others)
    twin.backward(integer_gradients(twin, 1))
    resumed.step()
    assert not twin.bias.grad[~mask].any()
    assert twin.bias.grad[mask].any()
    assert_same_on_all_ranks([one.grad for one in twin.parameters()])
