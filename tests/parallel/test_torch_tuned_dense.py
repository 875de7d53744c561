"""Adaptive steps that are dense: residuals join them, or gradients are not inspected."""

from __future__ import annotations

import math

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.errors import NonFiniteGradientError
from tests.framework_laws import laws_in, tuned_dense
from tests.parallel.torch_ranks import (
    Toy,
    distribute,
    integer_gradients,
    take_over_from_rank_0,
)
from tests.parallel.tuned_ranks import COMPRESSION, train
from tests.torch_model import residuals
from tests.verdict import CYCLE

globals().update(laws_in(tuned_dense))

several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="a single rank has nothing to tune")


def backward_with_nan(model, optimizer, step):
    """Runs a backward pass with a NaN in a gradient of rank 0."""
    gradients = integer_gradients(model, step)
    if hvd.rank() == 0:
        gradients["second"][3, 3, 3] = math.nan
    optimizer.zero_grad()
    model.backward(gradients)


def joined(residual, gradient, dtype, scale=1.0):
    """Returns what a rank sends of a narrow gradient plus its residual, and what it keeps."""
    whole = gradient.float() + residual.float() / scale
    sent = whole.to(dtype)
    return sent, (scale * (whole - sent.float())).double()


def summed(sent, **options):
    """Returns Horovod's reduction of narrow gradients, with the options of an optimizer."""
    factor = options.pop("gradient_predivide_factor", 1.0)
    options |= {"prescale_factor": 1 / factor, "postscale_factor": factor}
    wide = sent.float() if sent.dtype == torch.bfloat16 else sent  # which Horovod does not know
    return hvd.allreduce(wide, name="expected", **options).to(sent.dtype)


@several_ranks
@pytest.mark.parametrize("others", ["get it broadcast", "load it without residuals"])
def test_each_rank_keeps_what_is_rounded_away_of_its_own_residual(verdict, others):
    verdict(sparse=False)
    model = Toy(dtype=torch.float16)
    optimizer = distribute(model, COMPRESSION)
    list(train(model, optimizer, range(CYCLE), dtype=torch.float16))
    state = hvd.broadcast_object(optimizer.state_dict(), 0, name="state")
    optimizer = distribute(model, COMPRESSION)
    take_over_from_rank_0(optimizer, state, others)
    before = residuals(optimizer)["second"]
    assert bool(before.any()) == (hvd.rank() == 0)
    gradients = integer_gradients(model, CYCLE, low=1, high=1500)  # the sums need more bits
    optimizer.zero_grad()
    model.backward(gradients)
    optimizer.step()
    sent, kept = joined(before, gradients["second"].double().flatten(), torch.float16)
    assert torch.equal(residuals(optimizer)["second"], kept)
    assert torch.equal(model.second.grad.flatten(), summed(sent, op=hvd.Sum))


@several_ranks
def test_a_bad_gradient_is_refused_by_all_though_one_rank_has_reset_its_residual(verdict):
    verdict(sparse=False)
    model = Toy()
    optimizer = distribute(model, COMPRESSION)
    odd = hvd.rank() == 0
    for step in range(CYCLE):
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step))
        optimizer.step()
    if odd:
        optimizer.exchange.reset_residual()
    before = residuals(optimizer)
    assert any(residual.any() for residual in before.values()) != odd
    backward_with_nan(model, optimizer, CYCLE)
    with pytest.raises(NonFiniteGradientError, match="'second'"):
        optimizer.step()
    for name, residual in residuals(optimizer).items():
        assert torch.equal(residual, before[name])
    list(train(model, optimizer, range(3)))
    assert not any(residual.any() for residual in residuals(optimizer).values())
