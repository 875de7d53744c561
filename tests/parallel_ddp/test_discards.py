"""Gradients that a program throws away, and modules that it wraps anew."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hvd_sparse.ddp import TopK
from tests.parallel_ddp.networks import (
    ON_ANY_RANK,
    RATE,
    attached,
    batch,
    network,
    weights_of,
)


@pytest.mark.usefixtures("several_ranks")
def test_momentum_is_not_applied_twice_to_an_average(framework):
    ddp = network()
    optimizer = attached(ddp, kind=torch.optim.AdamW)
    ddp(batch(0, framework)).sum().backward()
    optimizer.zero_grad()  # skips the step
    ddp(batch(1, framework)).sum().backward()
    with pytest.raises(ON_ANY_RANK, match="within no_sync"):
        ddp(batch(2, framework)).sum().backward()


@pytest.mark.usefixtures("several_ranks")
def test_a_loss_that_reaches_the_parameters_of_another_optimizer_does_not_move_them(framework):
    adversary = network()
    optimizer = attached(adversary, TopK(density=0.1, min_numel=1), kind=torch.optim.AdamW)
    before = weights_of(adversary.module)
    for step in range(6):
        optimizer.zero_grad()
        (0.0 * adversary(batch(2 * step, framework)).sum()).backward()
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0
        optimizer.step()
        adversary(batch(2 * step + 1, framework)).square().mean().backward()  # a generator's loss
    for name, weights in weights_of(adversary.module).items():
        assert np.array_equal(weights, before[name])


@pytest.mark.usefixtures("several_ranks")
def test_sharpness_aware_steps_do_as_without_compression(framework):
    ours, theirs = network(), network()
    compression = TopK(density=1.0, min_numel=1, momentum_correction=0)
    optimizers = attached(ours, compression), torch.optim.SGD(theirs.parameters(), lr=RATE)
    for step in range(4):
        for ddp, optimizer in zip((ours, theirs), optimizers, strict=True):
            rows = batch(step, framework)
            ddp(rows).square().mean().backward()
            with torch.no_grad():
                climbs = [0.05 * param.grad for param in ddp.parameters()]
                for param, climb in zip(ddp.parameters(), climbs, strict=True):
                    param.add_(climb)
                    param.grad = None
            ddp(rows).square().mean().backward()
            with torch.no_grad():
                for param, climb in zip(ddp.parameters(), climbs, strict=True):
                    param.sub_(climb)
            optimizer.step()
            ddp.zero_grad()
    for name, weights in weights_of(ours).items():
        np.testing.assert_allclose(weights, weights_of(theirs)[name], rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("several_ranks")
def test_many_steps_that_are_thrown_away_are_told(framework, caplog):
    ddp = network()
    optimizer = attached(ddp)
    for step in range(17):
        ddp(batch(step, framework)).sum().backward()
        optimizer.zero_grad()
    assert sum("16 steps in a row" in record.message for record in caplog.records) == 1
