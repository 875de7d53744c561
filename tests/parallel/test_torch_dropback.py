"""DropBack, through hvd.DistributedOptimizer."""

from __future__ import annotations

import horovod.torch as hvd
import torch

from hvd_sparse.torch import Dense, DropBack
from tests.framework_laws import dropback, laws_in
from tests.parallel.torch_ranks import Toy, distribute, integer_gradients

globals().update(laws_in(dropback))


def test_a_step_by_which_horovod_broadcasts_a_state_does_not_count():
    model = Toy()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    optimizer = distribute(model, Dense(), optimizer=sgd)
    one = DropBack(optimizer, tracked=0.5, freeze_after=9)
    if hvd.rank() == 0:  # which has a state then
        optimizer.load_state_dict(optimizer.state_dict())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert one.state_dict()["steps"] == 0
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    assert one.state_dict()["steps"] == 1
