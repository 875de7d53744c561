"""Objects used with an optimizer: schedulers, scalers, copies, other optimizers, frozen layers."""

from __future__ import annotations

import copy
import pickle

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Layers
from hvd_sparse.torch import TopK
from tests.parallel.torch_ranks import (
    Toy,
    assert_nothing_is_lost,
    distribute,
    integer_gradients,
    total,
)
from tests.torch_model import residuals

EXACT = TopK(density=1.0, layers=Layers(min_numel=64, bucket_numel=1500))


@pytest.mark.parametrize("wrapped_first", [True, False])
def test_schedulers_see_the_optimizer_that_they_expect(wrapped_first):
    model = Toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if wrapped_first:
        optimizer = distribute(model, EXACT, optimizer=optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    if not wrapped_first:
        optimizer = distribute(model, EXACT, optimizer=optimizer)
    applied = torch.zeros_like(model.last)
    for step in range(3):
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step))
        optimizer.step()
        applied -= 0.5**step * model.last.grad
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert torch.equal(model.last.detach(), applied)


def test_a_gradient_scaler_steps_after_synchronize():
    model = Toy()
    optimizer = distribute(model, EXACT)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    gradients = integer_gradients(model, 0)
    scaler.scale((model.last * gradients["last"]).sum()).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.last.detach().double().flatten(), -total(gradients["last"]))


def test_copies_are_plain_optimizers():
    model = Toy()
    adam = torch.optim.Adam(model.parameters())
    optimizer = distribute(model, EXACT, optimizer=adam)
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(twin) is torch.optim.Adam
        assert "hvd_sparse" not in twin.state_dict()
        twin.step()
    copy.deepcopy(model)
    pickle.loads(pickle.dumps(model))


def test_two_optimizers_keep_apart():
    models = [Toy(), Toy()]
    optimizers = [
        distribute(model, TopK(density=0.1, layers=Layers(min_numel=64))) for model in models
    ]
    before = [residuals(optimizer) for optimizer in optimizers]
    for step in range(4):
        order = (0, 1) if (hvd.rank() + step) % 2 else (1, 0)  # ranks differ
        gradients = [integer_gradients(model, 2 * step + i) for i, model in enumerate(models)]
        for i in order:
            optimizers[i].zero_grad()
            models[i].backward(gradients[i])
        for i in (0, 1):
            optimizers[i].step()
            assert_nothing_is_lost(models[i], step, before[i], optimizers[i], gradients[i])
            before[i] = residuals(optimizers[i])


def test_a_newer_optimizer_takes_over_the_parameters():
    model = Toy()
    distribute(model, EXACT)
    optimizer = distribute(model, EXACT)
    gradients = integer_gradients(model, 0)
    model.backward(gradients)
    optimizer.step()
    assert torch.equal(model.last.grad.double().flatten(), total(gradients["last"]))


def test_frozen_parameters_stay_as_they_are():
    model = Toy()
    model.first.requires_grad_(False)
    optimizer = distribute(model, EXACT)
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    assert model.first.grad is None
    assert not model.first.any()
