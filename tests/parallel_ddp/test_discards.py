"""Gradients that a program throws away, and modules that it wraps anew."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.ddp import LAGS, TopK, attach
from tests.gpus import DEVICE
from tests.parallel_ddp.ddp_framework import BUCKET_MB
from tests.parallel_ddp.networks import (
    ON_ANY_RANK,
    RATE,
    SMALL,
    attached,
    batch,
    network,
    residuals,
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
    optimizer = attached(
        adversary, TopK(density=0.1, layers=Layers(min_numel=1)), kind=torch.optim.AdamW
    )
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
    compression = TopK(density=1.0, layers=Layers(min_numel=1), feedback=Feedback(momentum="keep"))
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


class Fails(torch.autograd.Function):
    """Passes rows on; its backward pass runs out of memory."""

    @staticmethod
    def forward(ctx, rows):
        return rows.clone()

    @staticmethod
    def backward(ctx, grad):
        raise torch.OutOfMemoryError


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("amid", [False, True])
@pytest.mark.parametrize(
    "compression", [TopK(density=0.1, **SMALL), LAGS(layers=Layers(min_numel=64))]
)
def test_a_module_that_is_wrapped_anew_keeps_its_optimizer_and_residuals(
    framework, compression, amid
):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(20, 40), torch.nn.ReLU(), torch.nn.Linear(40, 40)]
    module = torch.nn.Sequential(*layers).to(DEVICE)
    ddp = DistributedDataParallel(module, bucket_cap_mb=BUCKET_MB)
    optimizer = attached(ddp, compression, kind=torch.optim.AdamW)
    for part in range(2):
        for step in range(3):
            optimizer.zero_grad()
            ddp(batch(3 * part + step, framework)).square().mean().backward()
            optimizer.step()
        if part == 1:
            break
        kept = residuals(optimizer)
        if amid:
            middle = layers[1]
            module[1] = torch.nn.Module()
            module[1].forward = Fails.apply
            with pytest.raises(torch.OutOfMemoryError):
                ddp(batch(9, framework)).square().mean().backward()
            module[1] = middle
        ddp = DistributedDataParallel(module, bucket_cap_mb=BUCKET_MB)
        attach(ddp, optimizer, compression)
        assert all(np.array_equal(one, kept[name]) for name, one in residuals(optimizer).items())
    framework.assert_same_on_all_ranks(weights_of(module))
    assert optimizer.exchange.stats.total.steps == 6
