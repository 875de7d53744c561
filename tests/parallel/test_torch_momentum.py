"""Momentum correction: the law holds with velocities; dense layers use momentum SGD."""

from __future__ import annotations

import math

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.errors import (
    CheckpointMismatchError,
    ExchangeFailedError,
    InvalidArgumentError,
    NonFiniteGradientError,
)
from hvd_sparse.torch import (
    LAGS,
    GTopK,
    TopK,
    Warmup,
    load_checkpoint,
    save_checkpoint,
    stats,
)
from tests.parallel.torch_ranks import (
    Toy,
    a_name,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
    residuals,
    total,
    velocities,
)
from tests.verdict import CYCLE, DENSE_STEPS

several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="a single rank has no residuals")
M = 0.5  # with integers, sums are exact for some steps
OPTIONS = {"density": 0.1, "min_numel": 64, "momentum_correction": M}
COMPRESSIONS = {
    "lags": LAGS(adaptive=False, bucket_numel=1500, rescale_residual=False, **OPTIONS),
    "gtopk": GTopK(**OPTIONS),
    "topk": TopK(**OPTIONS),
    "split": TopK(collective="split_allgather", indices="packed", **OPTIONS),
    "warm-up": TopK(warmup=Warmup(steps=2, densities=(0.5, 0.25)), **OPTIONS),
}


def checked_step(model, optimizer, step, gradients):
    """Takes a step for op=Sum and checks the law of velocities and residuals."""
    residual, velocity = residuals(optimizer), velocities(optimizer)
    optimizer.zero_grad()
    model.backward(gradients)
    optimizer.step()
    grown = {
        name: gradient.double().flatten() + M * velocity.get(name, 0.0)
        for name, gradient in gradients.items()
    }
    assert_nothing_is_lost(model, step, residual, optimizer, grown)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_nothing_is_lost(name):
    model = Toy()
    optimizer = distribute(model, COMPRESSIONS[name])
    for step in range(5):
        checked_step(model, optimizer, step, integer_gradients(model, step))
        assert_same_on_all_ranks([p.grad for p in model.parameters()])
    if hvd.size() > 1:
        assert all(bool(part.any()) for part in velocities(optimizer).values())


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_what_travels_dense_is_momentum_sgd(op):
    model, twin = Toy(), Toy()
    optimizer = distribute(model, TopK(min_numel=10**6, momentum_correction=M), op=op)
    plain = torch.optim.SGD(twin.parameters(), lr=1.0, momentum=M)
    for step in range(4):
        gradients = integer_gradients(model, step)
        optimizer.zero_grad()
        model.backward(gradients)
        optimizer.step()
        for name, p in twin.named_parameters():
            share = 1 if op == hvd.Sum else hvd.size()
            p.grad = (total(gradients[name]) / share).float().view_as(p)
        plain.step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        if op == hvd.Sum:
            assert torch.equal(p, q)
        else:
            torch.testing.assert_close(p, q)


@several_ranks
def test_nothing_is_lost_from_dense_to_sparse(verdict):
    verdict(sparse=True)
    model = Toy()
    optimizer = distribute(model, LAGS(rescale_residual=False, **OPTIONS))
    sparse = []
    for step in range(DENSE_STEPS + 3):
        gradients = integer_gradients(model, step)
        if step < DENSE_STEPS - 2:  # otherwise sums would need more bits than float32 has
            gradients = {name: torch.zeros_like(g) for name, g in gradients.items()}
        checked_step(model, optimizer, step, gradients)
        sparse.append(len(stats(optimizer).last.buckets))
        assert_same_on_all_ranks(model.parameters())
    assert sparse == [0] * DENSE_STEPS + [1] * 3
    assert CYCLE > DENSE_STEPS + 3


@pytest.mark.parametrize("bad", ["last", "bias"])
def test_a_bad_gradient_of_one_rank_leaves_finite_velocities(bad):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model = Toy()
    optimizer = distribute(model, TopK(loss_scale=scaler, **OPTIONS))
    for step in range(4):
        gradients = integer_gradients(model, step)
        if step == 1 and hvd.rank() == hvd.size() - 1:
            gradients[bad].view(-1)[0] = math.nan
        before, velocity = residuals(optimizer), velocities(optimizer)
        weights = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        scaler.scale(sum((getattr(model, n) * g).sum() for n, g in gradients.items())).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        if step != 1:
            continue
        assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))
        after = velocities(optimizer)
        assert torch.equal(after["bias"], velocity["bias"])  # dense: skipped
        for name, part in residuals(optimizer).items() if hvd.size() > 1 else ():
            finite = torch.nan_to_num(gradients[name], nan=0.0).double().flatten()
            grown = M * velocity[name] + finite
            assert torch.equal(part, before[name] + grown)
            assert torch.equal(after[name], grown)
    assert scaler.get_scale() == 512
    assert all(part.isfinite().all() for part in velocities(optimizer).values())
    assert_same_on_all_ranks(model.parameters())


def test_a_step_that_a_narrow_gradient_cannot_hold_is_refused():
    model = Toy({"bias": (7,)}, dtype=torch.float16)
    optimizer = distribute(model, COMPRESSIONS["topk"], op=hvd.Average)
    gradients = {"bias": torch.full((7,), 40000.0, dtype=torch.float16)}
    for held in (True, True, False):  # 40000, 60000, 70000
        optimizer.zero_grad()
        model.backward(gradients)
        if held:
            optimizer.step()
            continue
        with pytest.raises(NonFiniteGradientError, match="'bias'"):
            optimizer.step()
    assert torch.equal(velocities(optimizer)["bias"], torch.full((7,), 60000.0).double())


@pytest.fixture
def folder(tmp_path_factory):
    """A folder that is the same on all ranks."""
    mine = str(tmp_path_factory.mktemp("checkpoint") / "last")
    return hvd.broadcast_object(mine, 0, name=a_name(hvd.global_process_set))


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step))
        optimizer.step()


@pytest.mark.parametrize("name", ["lags", "gtopk"])
def test_a_resumed_run_goes_on_bit_for_bit(name, folder):
    model = Toy()
    optimizer = distribute(model, COMPRESSIONS[name])
    train(model, optimizer, range(3))
    save_checkpoint(folder, model, optimizer)
    train(model, optimizer, range(3, 6))
    twin = Toy()
    resumed = distribute(twin, COMPRESSIONS[name])
    train(twin, resumed, range(20, 22))
    load_checkpoint(folder, twin, resumed)
    train(twin, resumed, range(3, 6))
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
    for name, part in velocities(optimizer).items():
        assert torch.equal(part, velocities(resumed)[name])


@several_ranks
@pytest.mark.parametrize("policy", ["spread", "reset"])
def test_velocities_begin_anew_where_residuals_change_hands(policy, folder):
    model = Toy()
    optimizer = distribute(model, COMPRESSIONS["gtopk"])
    train(model, optimizer, range(3))
    save_checkpoint(folder, model, optimizer)
    load_checkpoint(folder, model, optimizer, residuals=policy)
    assert not any(part.any() for part in velocities(optimizer).values())
    checked_step(model, optimizer, 3, integer_gradients(model, 3))


def test_reset_residual_empties_velocities_and_a_damaged_one_is_refused():
    model = Toy()
    optimizer = distribute(model, COMPRESSIONS["gtopk"])
    train(model, optimizer, range(2))
    state = optimizer.state_dict()
    state["hvd_sparse"]["velocities"]["bias"] = torch.zeros(3)
    with pytest.raises(CheckpointMismatchError, match="velocity of 'bias' is damaged"):
        optimizer.load_state_dict(state)
    optimizer.reset_residual()
    assert not any(part.any() for part in velocities(optimizer).values())


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9), "momentum of group 0 of SGD is 0.9"),
        (torch.optim.Adam, r"betas of group 0 of Adam is \(0.9, 0.999\)"),
    ],
)
def test_momentum_is_not_applied_twice(make, match):
    model = Toy()
    with pytest.raises(InvalidArgumentError, match=f"{match} and momentum_correction"):
        distribute(model, COMPRESSIONS["topk"], optimizer=make(model.parameters()))


def test_an_adam_without_momentum_of_its_own_takes_the_corrected_one():
    model = Toy()
    adam = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.0, 0.999))
    optimizer = distribute(model, COMPRESSIONS["topk"], optimizer=adam)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    train(model, optimizer, range(2))
    assert not any(map(torch.equal, before, model.parameters()))
    assert_same_on_all_ranks(model.parameters())


def test_momentum_that_comes_with_a_loaded_state_is_refused():
    model = Toy()
    optimizer = distribute(model, COMPRESSIONS["topk"])
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises((InvalidArgumentError, ExchangeFailedError), match="act twice"):
        train(model, optimizer, range(2))
