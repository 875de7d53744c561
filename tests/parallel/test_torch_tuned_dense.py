"""Adaptive steps that are dense: residuals join them, or gradients are not inspected."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.errors import NonFiniteGradientError
from hvd_sparse.torch import replan, stats
from tests.parallel.torch_ranks import (
    Toy,
    distribute,
    integer_gradients,
    residuals,
    take_over_from_rank_0,
    totals,
)
from tests.parallel.tuned_ranks import COMPRESSION, train
from tests.verdict import CYCLE, DENSE_STEPS

several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="a single rank has nothing to tune")


def backward_with_nan(model, optimizer, step):
    """Runs a backward pass with a NaN in a gradient of rank 0."""
    gradients = integer_gradients(model, step)
    if hvd.rank() == 0:
        gradients["second"][3, 3, 3] = math.nan
    optimizer.zero_grad()
    model.backward(gradients)


@several_ranks
def test_residuals_join_narrow_gradients_without_loss(verdict):
    verdict(sparse=False)
    model = Toy(dtype=torch.float16)
    optimizer = distribute(model, COMPRESSION)
    list(train(model, optimizer, range(CYCLE + 3)))
    assert not any(r.any() for r in residuals(optimizer).values())


@several_ranks
@pytest.mark.parametrize(
    ("dtype", "options", "ranks"),
    [
        (torch.float16, {"op": hvd.Sum}, 1),
        (torch.bfloat16, {"op": hvd.Sum}, 1),
        (torch.bfloat16, {"op": hvd.Average, "gradient_predivide_factor": 2.0}, hvd.size()),
    ],
)
def test_what_a_narrow_type_rounds_away_of_a_residual_waits_for_sparse_steps(
    verdict, dtype, options, ranks
):
    verdict(sparse=False)
    model = Toy(dtype=dtype)
    optimizer = distribute(model, COMPRESSION, **options)
    scale = 1 / options.get("gradient_predivide_factor", 1.0)
    steps = itertools.count()

    def backward(**changes):
        gradients = integer_gradients(model, next(steps), low=1, high=1500)
        optimizer.zero_grad()
        model.backward({**gradients, **changes})
        return gradients["second"].double().flatten()

    def dense_step():  # the layer was sparse; the sums need more bits
        before = residuals(optimizer)["second"]
        sent, kept = joined(before, backward(), dtype, scale)
        optimizer.step()
        assert torch.equal(residuals(optimizer)["second"], kept)
        assert torch.equal(model.second.grad.flatten(), summed(sent, **options))

    def sparse_step():
        owed = residuals(optimizer)["second"]
        owed += scale * backward()
        optimizer.step()
        everywhere = totals({"owed": owed, "kept": residuals(optimizer)["second"]})
        given = scale * ranks * model.second.grad.double().flatten() + everywhere["kept"]
        torch.testing.assert_close(everywhere["owed"], given, rtol=1e-6, atol=0)

    for _ in range(CYCLE):
        backward()
        optimizer.step()
    dense_step()
    rests = residuals(optimizer)
    assert rests["second"].any()
    backward(second=torch.full_like(model.second, math.nan))
    optimizer.synchronize()  # nothing is added, so gradients are not inspected
    assert all(torch.equal(rest, rests[name]) for name, rest in residuals(optimizer).items())
    replan(optimizer)
    dense_step()  # takes up what had waited
    for _ in range(DENSE_STEPS - 1):
        backward()
        optimizer.step()
    sparse_step()
    assert len(stats(optimizer).last.buckets) == 1


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
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("sparse", "stop"), [(False, 1), (False, CYCLE), (False, CYCLE + 1), (True, CYCLE + 1)]
)
def test_narrow_gradients_go_on_bit_for_bit_from_a_checkpoint(verdict, dtype, sparse, stop):
    verdict(sparse=sparse)
    options = {"op": hvd.Average, "gradient_predivide_factor": 3.0}  # which a narrow type rounds

    def run(model, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            model.backward(integer_gradients(model, step, low=1, high=1500))
            optimizer.step()

    model, twin = Toy(dtype=dtype), Toy(dtype=dtype)
    optimizer = distribute(model, COMPRESSION, **options)
    run(model, optimizer, range(stop))
    twin.load_state_dict(model.state_dict())
    resumed = distribute(twin, COMPRESSION, **options)
    resumed.load_state_dict(optimizer.state_dict())
    for step in range(stop, stop + 3):
        run(model, optimizer, [step])
        run(twin, resumed, [step])
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(p.grad, q.grad)
            assert torch.equal(p, q)
        before = residuals(optimizer)
        assert all(torch.equal(part, before[name]) for name, part in residuals(resumed).items())


@several_ranks
def test_a_bad_gradient_in_a_step_that_is_all_dense_is_horovods_affair(verdict):
    verdict(sparse=False)
    model = Toy()
    optimizer = distribute(model, COMPRESSION)
    list(train(model, optimizer, range(1)))  # as if with residuals from a checkpoint
    backward_with_nan(model, optimizer, 1)
    optimizer.synchronize()
    assert model.second.grad.isnan().sum() == 1


@several_ranks
def test_a_bad_gradient_in_a_step_that_empties_residuals_keeps_them(verdict):
    verdict(sparse=False)
    model = Toy()
    optimizer = distribute(model, COMPRESSION)
    list(train(model, optimizer, range(CYCLE)))
    before = residuals(optimizer)
    backward_with_nan(model, optimizer, 99)
    with pytest.raises(ArithmeticError):
        optimizer.step()
    for name, residual in residuals(optimizer).items():
        assert torch.equal(residual, before[name])
    list(train(model, optimizer, range(3)))


@several_ranks
@pytest.mark.parametrize("empty", ["nothing came", "reset"])
def test_a_bad_gradient_is_refused_by_all_though_one_rank_has_no_residual(verdict, empty):
    verdict(sparse=False)
    model = Toy()
    optimizer = distribute(model, COMPRESSION)
    odd = hvd.rank() == 0
    for step in range(CYCLE):
        gradients = integer_gradients(model, step)
        if odd and empty == "nothing came":
            gradients = {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
        optimizer.zero_grad()
        model.backward(gradients)
        optimizer.step()
    if odd and empty == "reset":
        optimizer.reset_residual()
    before = residuals(optimizer)
    assert any(residual.any() for residual in before.values()) != odd
    backward_with_nan(model, optimizer, CYCLE)
    with pytest.raises(NonFiniteGradientError, match="'second'"):
        optimizer.step()
    for name, residual in residuals(optimizer).items():
        assert torch.equal(residual, before[name])
    list(train(model, optimizer, range(3)))
    assert not any(residual.any() for residual in residuals(optimizer).values())


@several_ranks
def test_a_refused_step_that_empties_residuals_still_changes_their_rate(verdict):
    verdict(sparse=False)
    model = Toy()
    optimizer = distribute(model, replace(COMPRESSION, rescale_residual=True))
    list(train(model, optimizer, range(CYCLE)))
    before = residuals(optimizer)
    assert any(residual.any() for residual in before.values())
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.zero_grad()
    model.backward({name: torch.full_like(p, math.nan) for name, p in model.named_parameters()})
    with pytest.raises(NonFiniteGradientError):
        optimizer.step()
    for name, residual in residuals(optimizer).items():
        assert torch.equal(residual, 2 * before[name])
    list(train(model, optimizer, range(3)))
