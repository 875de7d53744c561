"""Loss scaling: nothing is lost when the scale changes, and all ranks skip a step or none."""

from __future__ import annotations

import math

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.errors import InvalidArgumentError, NonFiniteGradientError
from hvd_sparse.torch import LAGS, GTopK, TopK
from tests.parallel.torch_ranks import (
    Toy,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
    total,
)
from tests.torch_model import residuals
from tests.verdict import CYCLE

several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="a single rank has no residuals")
LAYERS, FEEDBACK = Layers(min_numel=64), Feedback(rescale=False)
PRESETS = {
    "lags": LAGS(adaptive=False, density=0.1, layers=LAYERS, feedback=FEEDBACK),
    "gtopk": GTopK(density=0.1, layers=LAYERS),
    "adaptive": LAGS(density=0.1, layers=LAYERS, feedback=FEEDBACK),
}


def new_scaler(**options):
    return torch.amp.GradScaler("cpu", init_scale=1024.0, **options)


def scaled_step(model, optimizer, scaler, gradients, *, passes=1, clip=None):
    """Takes a step in the way that Horovod documents for a scaler."""
    optimizer.zero_grad()
    for _ in range(passes):
        loss = sum((getattr(model, name) * g).sum() for name, g in gradients.items())
        scaler.scale(loss).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("preset", PRESETS)
def test_nothing_is_lost_while_the_scale_grows(preset, verdict):
    verdict(sparse=True)
    scaler = new_scaler(growth_interval=3)
    model = Toy()
    optimizer = distribute(model, PRESETS[preset], grad_scaler=scaler)
    for step in range(CYCLE + 4 if preset == "adaptive" else 8):
        before = residuals(optimizer)
        gradients = integer_gradients(model, step)
        scaled_step(model, optimizer, scaler, gradients)  # the gradients are unscaled by now
        assert_nothing_is_lost(model, step, before, optimizer, gradients)
    assert scaler.get_scale() > 1024


@several_ranks
@pytest.mark.parametrize("preset", ["lags", "gtopk"])
def test_a_disabled_scaler_skips_nothing_so_a_bad_gradient_is_refused(preset):
    model = Toy()
    optimizer = distribute(model, PRESETS[preset], grad_scaler=new_scaler(enabled=False))
    gradients = integer_gradients(model, 0)
    if hvd.rank() == 0:
        gradients["first"][0, 0] = math.nan
    model.backward(gradients)
    with pytest.raises(NonFiniteGradientError, match="rank 0"):
        optimizer.synchronize()
    assert all(not p.grad.any() for p in model.parameters())


@several_ranks
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("where", ["last", "bias"])
def test_a_bad_gradient_of_one_rank_makes_all_skip_and_back_off(preset, where):
    scaler = new_scaler(growth_interval=1000)
    model = Toy()
    optimizer = distribute(model, PRESETS[preset], grad_scaler=scaler)
    scaled_step(model, optimizer, scaler, integer_gradients(model, 0))
    weights = [p.detach().clone() for p in model.parameters()]
    owed = {name: total(part) for name, part in residuals(optimizer).items()}
    bad = integer_gradients(model, 1)
    if hvd.rank() == hvd.size() - 1:
        bad[where].view(-1)[0] = math.inf
    scaled_step(model, optimizer, scaler, bad)
    assert scaler.get_scale() == 512
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))
    for name, part in residuals(optimizer).items():
        assert torch.equal(total(part), owed[name])
    scaled_step(model, optimizer, scaler, integer_gradients(model, 2))
    assert_same_on_all_ranks(model.parameters())
    assert not torch.equal(next(model.parameters()), weights[0])


@several_ranks
@pytest.mark.parametrize("preset", ["lags", "gtopk"])
def test_a_gradient_beyond_float32_makes_all_skip_and_back_off(preset):
    scaler = new_scaler(growth_interval=1000)
    model = Toy(dtype=torch.float64)
    optimizer = distribute(model, PRESETS[preset], grad_scaler=scaler)
    bad = integer_gradients(model, 0)
    if hvd.rank() == hvd.size() - 1:
        bad["last"].view(-1)[0] = 1e300
    scaled_step(model, optimizer, scaler, bad)
    assert scaler.get_scale() == 512
    assert not any(p.any() for p in model.parameters())


@several_ranks
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_accumulation_clipping_and_process_sets_go_with_it(passes, clip, dtype):
    ranks = hvd.add_process_set(list(range(hvd.size() - 1))) if hvd.size() > 2 else None
    scaler = new_scaler()
    model = Toy(dtype=dtype)
    options = {} if ranks is None else {"process_set": ranks}
    optimizer = distribute(
        model, PRESETS["lags"], grad_scaler=scaler, backward_passes_per_step=passes, **options
    )
    try:
        for step in range(3):
            gradients = integer_gradients(model, step)
            scaled_step(model, optimizer, scaler, gradients, passes=passes, clip=clip)
        if ranks is None or ranks.included():
            options = {} if ranks is None else {"process_set": ranks}
            assert_same_on_all_ranks(model.parameters(), **options)
            assert all(torch.isfinite(p).all() for p in model.parameters())
    finally:
        if ranks is not None:
            hvd.barrier()
            hvd.remove_process_set(ranks)


def test_what_is_no_scaler_is_refused():
    with pytest.raises(InvalidArgumentError, match="grad_scaler must have get_scale"):
        distribute(Toy(), TopK, grad_scaler=1024.0)


def test_a_compression_of_horovod_takes_no_scaler():
    with pytest.raises(InvalidArgumentError, match="grad_scaler needs compression=LAGS"):
        distribute(Toy(), hvd.Compression.none, grad_scaler=new_scaler())
    distribute(Toy(), hvd.Compression.none, grad_scaler=None, wait_in_forward=False)
