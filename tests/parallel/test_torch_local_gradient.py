"""Clipping and weight decay before error feedback: the law holds for the changed gradient."""

from __future__ import annotations

import math

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.torch import LAGS, TopK
from tests.parallel.torch_ranks import (
    Toy,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
    residuals,
    signs,
    total,
)

SMALL = {"density": 0.1, "min_numel": 64}


@pytest.mark.parametrize(("norm", "factor"), [(64.0, 0.25), (16.0, 1.0), (8.0, 1.0)])
def test_the_law_counts_the_clipped_gradient(norm, factor):
    model = Toy({"first": (40, 30), "second": (25, 20)})
    limit = 16 * math.sqrt(hvd.size())  # of the result: 16 per rank
    optimizer = distribute(model, TopK(clip_norm=limit, **SMALL))
    before = residuals(optimizer)
    for step in range(4):
        optimizer.zero_grad()
        gradients = signs(model, step, norm=norm)
        model.backward(gradients)
        optimizer.step()
        assert_nothing_is_lost(model, step, before, optimizer, gradients, scale=factor)
        before = residuals(optimizer)
    assert_same_on_all_ranks(model.parameters())


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_orthogonal_gradients_give_a_result_of_the_norm_asked_for(op):
    model = Toy({"matrix": (64, 64), "vector": (64,)})
    optimizer = distribute(model, TopK(density=1.0, min_numel=64, clip_norm=2.0), op=op)
    own = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    own["matrix"][hvd.rank()] = 100.0
    own["vector"][hvd.rank()] = 100.0
    model.backward(own)
    optimizer.step()
    for p in model.parameters():
        torch.testing.assert_close(p.grad.norm(), torch.tensor(2.0))


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_the_result_has_weight_decay_times_the_weights(op):
    model = Toy()
    optimizer = distribute(model, TopK(density=1.0, min_numel=64, weight_decay=0.25), op=op)
    for p in model.parameters():
        torch.nn.init.constant_(p, 8.0)
    gradients = integer_gradients(model, 0)
    model.backward(gradients)
    optimizer.synchronize()
    for name, p in model.named_parameters():
        mean = total(gradients[name]) / (1 if op == hvd.Sum else hvd.size())
        torch.testing.assert_close(p.grad.double().flatten(), mean + 2.0, rtol=1e-6, atol=1e-6)


def test_weight_decay_that_is_not_sent_yet_is_in_the_residuals():
    model = Toy()
    optimizer = distribute(model, TopK(weight_decay=0.5 * hvd.size(), **SMALL))
    for p in model.parameters():
        torch.nn.init.constant_(p, 4.0)
    before = residuals(optimizer)
    gradients = integer_gradients(model, 0)
    model.backward(gradients)
    optimizer.synchronize()
    decayed = {name: gradients[name] + 2.0 for name in gradients}
    assert_nothing_is_lost(model, 0, before, optimizer, decayed)


def test_a_missing_gradient_decays_too():
    model = Toy()
    optimizer = distribute(model, TopK(density=1.0, min_numel=64, weight_decay=0.5))
    for p in model.parameters():
        torch.nn.init.constant_(p, 4.0)
    gradients = integer_gradients(model, 0)
    del gradients["last"]
    model.backward(gradients)
    optimizer.step()
    torch.testing.assert_close(model.last.detach(), torch.full((30, 20), 2.0))


def test_what_is_not_finite_does_not_spoil_the_rest_of_a_clipped_gradient():
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    model = Toy({"matrix": (40, 30)})
    compression = TopK(clip_norm=16 * math.sqrt(hvd.size()), loss_scale=scaler, **SMALL)
    optimizer = distribute(model, compression)
    gradients = signs(model, 0, norm=64.0)
    bad = gradients["matrix"].clone()
    if hvd.rank() == 0:
        bad.view(-1)[int((bad.view(-1) == 0).nonzero()[0])] = math.inf
    scaler.scale((model.matrix * bad).sum()).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2
    assert not model.matrix.any()
    for part in residuals(optimizer).values() if hvd.size() > 1 else ():
        assert torch.equal(part, 0.25 * gradients["matrix"].double().flatten())


def test_weight_decay_is_not_applied_twice():
    model = Toy()
    others = {"params": [model.bias, model.second, model.last], "weight_decay": 0.125}
    sgd = torch.optim.SGD([{"params": [model.first]}, others], lr=1.0)
    message = "weight_decay of group 1 of SGD is 0.125 and weight_decay of the compression is 0.5"
    with pytest.raises(InvalidArgumentError, match=message):
        distribute(model, LAGS(weight_decay=0.5), optimizer=sgd)
