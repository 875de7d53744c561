"""Parameters that a step does not use, with find_unused_parameters=True."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.ddp import TopK
from tests.frameworks import SHAPES
from tests.gpus import DEVICE
from tests.parallel_ddp.ddp_framework import BUCKET_MB, Toy
from tests.parallel_ddp.networks import (
    RATE,
    SMALL,
    attached,
    batch,
    integers,
    residuals,
    weights_of,
)
from tests.torch_model import array_of


class Sometimes(torch.nn.Module):
    """Uses its second layer where it is told to."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(20, 40), torch.nn.Linear(40, 40)
        self.last = torch.nn.Linear(40, 10)

    def forward(self, rows, second):
        rows = self.first(rows).relu()
        return self.last(self.second(rows).relu() if second else rows)


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_parameters_that_are_not_used_do_as_without_compression(framework, view, set_to_none):
    options = {"find_unused_parameters": True, "gradient_as_bucket_view": view}
    ours, theirs = (DistributedDataParallel(Sometimes().to(DEVICE), **options) for _ in range(2))
    compression = TopK(density=1.0, layers=Layers(min_numel=1), feedback=Feedback(momentum="keep"))
    optimizers = attached(ours, compression), torch.optim.SGD(theirs.parameters(), lr=RATE)
    # On all ranks, on rank 0 alone, on none.
    for step, used in enumerate((True, framework.rank == 0, False, False, True, False)):
        for ddp, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad(set_to_none=set_to_none)
            for part in range(2):
                with nullcontext() if part else ddp.no_sync():
                    ddp(batch(2 * step + part, framework), used).square().mean().backward()
            optimizer.step()
    for name, weights in weights_of(ours.module).items():
        np.testing.assert_allclose(weights, weights_of(theirs.module)[name], rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("view", [False, True])
def test_what_is_delivered_for_a_parameter_that_no_rank_has_used_is_applied(framework, view):
    options = {"find_unused_parameters": True, "gradient_as_bucket_view": view}
    toy = Toy().to(DEVICE)
    toy.forward = lambda given: sum((getattr(toy, name) * one).sum() for name, one in given.items())
    ddp = DistributedDataParallel(toy, bucket_cap_mb=BUCKET_MB, **options)
    optimizer = attached(ddp, TopK(density=0.1, **SMALL), op=dist.ReduceOp.SUM)
    later = 0.0
    for step in range(4):
        optimizer.zero_grad(set_to_none=step != 2)
        given = integers(framework, step)
        if step:
            del given["first"], given["bias"]
        before, weights = residuals(optimizer), weights_of(ddp.module)
        ddp(given).backward()
        optimizer.step()
        moved = {name: (weights[name] - one) / RATE for name, one in weights_of(ddp.module).items()}
        arrays = {
            name: array_of(given[name]) if name in given else 0.0 * moved[name] for name in SHAPES
        }
        framework.assert_nothing_is_lost(arrays, moved, before, residuals(optimizer))
        later += np.abs(moved["first"]).sum() if step else 0.0
    assert later > 0
    framework.assert_same_on_all_ranks(weights_of(ddp.module))
