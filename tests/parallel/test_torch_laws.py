"""The laws through the optimizer: exact sums, bitwise equal replicas, nothing lost."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.torch import LAGS, GaussianK, GTopK, TopK, stats
from tests.parallel.torch_ranks import (
    Toy,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    distribute,
    gradients_of,
    integer_gradients,
    residuals,
    total,
    totals,
)

PRESETS = [LAGS, GTopK, GaussianK, TopK]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SMALL = {"min_numel": 64, "bucket_numel": 1500}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("density", [0.01, 0.3, 1.0])
def test_nothing_is_lost_over_several_steps(preset, density):
    model = Toy()
    optimizer = distribute(
        model, preset(adaptive=False, density=density, rescale_residual=False, **SMALL)
    )
    before = residuals(optimizer)
    for step in range(6):
        optimizer.zero_grad()
        gradients = integer_gradients(model, step)
        model.backward(gradients)
        optimizer.synchronize()
        assert_nothing_is_lost(model, step, before, optimizer, gradients)
        assert_same_on_all_ranks([p.grad for p in model.parameters()])
        with optimizer.skip_synchronize():
            optimizer.step()
        before = residuals(optimizer)
    assert_same_on_all_ranks(model.parameters())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("preset", [LAGS, TopK])
def test_nothing_is_lost_in_any_number_type(preset, dtype):
    model = Toy(dtype=dtype)
    optimizer = distribute(model, preset(adaptive=False, density=0.1, **SMALL))
    before = residuals(optimizer)
    for step in range(4):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        gradients = integer_gradients(model, step)
        model.backward(gradients)
        optimizer.step()
        assert_nothing_is_lost(model, step, before, optimizer, gradients)
        assert all(p.grad.dtype == dtype for p in model.parameters())
        before = residuals(optimizer)
    assert_same_on_all_ranks(model.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_a_narrow_type_rounds_away_stays_in_the_residuals(dtype):
    model = Toy({"w": (40, 40)}, dtype=dtype)
    optimizer = distribute(model, TopK(density=1.0, min_numel=1))
    gradients = integer_gradients(model, 0, low=1, high=1 << 8)
    before = residuals(optimizer)
    for _ in range(20):  # the sums need more bits than the type has
        optimizer.zero_grad()
        model.backward(gradients)
        optimizer.step()
        after = residuals(optimizer)
        if hvd.size() > 1:
            owed = gradients["w"].double().flatten() + before["w"]
            summed = totals({"owed": owed, "kept": after["w"]})
            applied = model.w.grad.double().flatten()
            torch.testing.assert_close(summed["owed"], applied + summed["kept"], rtol=1e-6, atol=0)
        before = after


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
@pytest.mark.parametrize("preset", [GaussianK, TopK])
def test_density_one_sends_the_exact_sum(preset, op):
    model = Toy()
    optimizer = distribute(model, preset(adaptive=False, density=1.0, **SMALL), op=op)
    gradients = integer_gradients(model, 0)
    model.backward(gradients)
    optimizer.synchronize()
    for name, p in model.named_parameters():
        exact = total(gradients[name])
        if op == hvd.Average:
            exact = exact / hvd.size()
            torch.testing.assert_close(p.grad.double().flatten(), exact, rtol=1e-6, atol=0)
        else:
            assert torch.equal(p.grad.double().flatten(), exact)


def test_small_and_1d_parameters_are_exchanged_dense_and_have_no_residual():
    model = Toy({"matrix": (50, 40), "small": (5, 5), "long_vector": (4000,), "scalar": ()})
    optimizer = distribute(model, TopK(density=0.01, min_numel=100))
    gradients = integer_gradients(model, 0)
    model.backward(gradients)
    optimizer.synchronize()
    for name in ("small", "long_vector", "scalar"):
        assert torch.equal(getattr(model, name).grad.double().flatten(), total(gradients[name]))
    if hvd.size() > 1:
        assert set(residuals(optimizer)) == {"matrix"}
        assert int((model.matrix.grad != 0).sum()) <= 20 * hvd.size()
        assert stats(optimizer).last.dense_bytes == 4 * (25 + 4000 + 1)


def test_predivided_averages_are_averages():
    for factor in (1.0, 4.0):
        model = Toy()
        optimizer = distribute(
            model,
            TopK(density=1.0, **SMALL),
            op=hvd.Average,
            gradient_predivide_factor=factor,
        )
        gradients = integer_gradients(model, 0)
        model.backward(gradients)
        optimizer.synchronize()
        for name, p in model.named_parameters():
            exact = total(gradients[name]) / hvd.size()
            torch.testing.assert_close(p.grad.double().flatten(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_trained_network_is_bitwise_equal_on_all_ranks(preset):
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10)
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = distribute(
        model,
        preset(adaptive=False, density=0.05, min_numel=50, bucket_numel=100),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        op=hvd.Average,
    )
    for _ in range(8):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 1, 8, 8)).logsumexp(1).mean()
        loss.backward()
        optimizer.step()
    assert_same_on_all_ranks(model.parameters())
    assert all(p.detach().abs().max() > 0 for p in model.parameters())


def test_gradients_in_another_memory_format_are_exchanged_in_logical_order():
    torch.manual_seed(0)
    plain = torch.nn.Conv2d(4, 6, 3)
    layouts = [torch.contiguous_format, torch.channels_last]
    model = torch.nn.Conv2d(4, 6, 3).to(memory_format=layouts[hvd.rank() % 2])
    model.load_state_dict(plain.state_dict())
    optimizer = distribute(model, TopK(density=1.0, min_numel=1))
    inputs = torch.randint(-3, 4, (2, 4, 5, 5), generator=torch.Generator().manual_seed(hvd.rank()))
    model(inputs.float()).sum().backward()
    plain(inputs.float()).sum().backward()
    optimizer.synchronize()
    assert torch.equal(model.weight.grad.double().flatten(), total(plain.weight.grad))
    assert_same_on_all_ranks(gradients_of(model).values())
