"""sparse_allreduce and the statistics of an exchange."""

from __future__ import annotations

import math

import horovod.torch as hvd
import pytest
import torch

import hvd_sparse.torch
from hvd_sparse.compression import Layers, Warmup
from hvd_sparse.errors import InvalidArgumentError, NonFiniteGradientError, UnsupportedError
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.torch import LAGS, SBC, GaussianK, GTopK, TopK, sparse_allreduce
from tests.dense_sums import DENSE_SUMS
from tests.parallel.torch_ranks import (
    Toy,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
    total,
)

PRESETS = [LAGS, GTopK, GaussianK, TopK]
COMPRESSIONS = [preset(adaptive=False, density=0.1) for preset in PRESETS]
COMPRESSIONS += DENSE_SUMS.values()


def integers(step, shape=(30, 40), dtype=torch.float32):
    generator = torch.Generator().manual_seed(1000 * step + hvd.rank())
    return torch.randint(-9, 10, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_nothing_is_lost_over_several_calls(compression, dtype):
    residual = torch.zeros(1200)
    for step in range(4):
        tensor = integers(step, dtype=dtype)
        copy, before = tensor.clone(), residual.clone()
        result = sparse_allreduce(tensor, residual, compression=compression, op=hvd.Sum)
        assert torch.equal(tensor, copy)
        assert result.shape == tensor.shape
        assert result.dtype == dtype
        given = tensor.double().flatten() + before - residual
        assert torch.equal(total(given), result.double().flatten())
        assert_same_on_all_ranks([result])


@pytest.mark.skipif(hvd.size() == 1, reason="a lone rank sends nothing and rounds nothing")
def test_sbc_sends_one_number_and_keeps_the_rest():
    residual = torch.zeros(1200)
    for step in range(4):
        tensor, before = integers(step), residual.clone()
        result = sparse_allreduce(tensor, residual, compression=SBC(density=0.1), op=hvd.Sum)
        sent = (tensor.flatten() + before).double() - residual
        assert len(sent[sent != 0].unique()) == 1
        assert 0 < sent.count_nonzero() <= 120
        torch.testing.assert_close(total(sent), result.double().flatten(), rtol=1e-6, atol=1e-5)
        assert_same_on_all_ranks([result])


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_result_goes_where_the_caller_wants_it(same, transposed):
    tensor = integers(1).t() if transposed else integers(1)
    residuals = torch.zeros(2, 1200)
    expected = sparse_allreduce(tensor, residuals[0], compression=TopK(density=0.1), name="new")
    out = tensor if same and not transposed else torch.empty(tensor.shape)
    before = tensor.clone()
    result = sparse_allreduce(
        tensor, residuals[1], out=out, compression=TopK(density=0.1), name="out"
    )
    assert result is out
    assert torch.equal(out, expected)
    assert torch.equal(residuals[0], residuals[1])
    assert out is tensor or torch.equal(tensor, before)


MEMORY = torch.zeros(8)


@pytest.mark.parametrize(
    ("tensor", "out", "match"),
    [
        (torch.zeros(4), [1.0], "out must be a torch.Tensor, got list"),
        (torch.zeros(4), torch.zeros(2, 2), r"out must have shape .*4.*, got"),
        (torch.zeros(4), torch.zeros(4).double(), "out must have dtype torch.float32"),
        (torch.zeros(4), torch.zeros(4, device="meta"), "out must have device cpu"),
        (torch.zeros(4), torch.zeros(8)[::2], "out must be contiguous"),
        (torch.zeros(4), torch.zeros(4, requires_grad=True), "out must not require grad"),
        (torch.zeros(4), MEMORY[1:5], "out must not share memory with residual"),
        (MEMORY[5:], MEMORY[4:7], "out must be tensor, or share no memory with it"),
    ],
)
def test_bad_places_for_a_result_are_refused(tensor, out, match):
    with pytest.raises(InvalidArgumentError, match=match):
        sparse_allreduce(tensor, MEMORY[: tensor.numel()], out=out)


def test_an_average_is_the_default():
    result = sparse_allreduce(
        torch.full((64,), 1.0 + hvd.rank()), torch.zeros(64), compression=TopK(density=1.0)
    )
    torch.testing.assert_close(result, torch.full((64,), (1 + hvd.size()) / 2))


def test_one_percent_of_the_entries_is_applied_by_default():
    result = sparse_allreduce(torch.randn(1000), torch.zeros(1000))
    assert 1 <= int((result != 0).sum()) <= 10


@pytest.mark.parametrize("densities", [(0.25,), (0.25, 0.0625, 0.015625)])
def test_a_call_sends_its_density_and_no_warm_ups(densities):
    compression = TopK(density=0.01, warmup=Warmup(steps=2, densities=densities))
    for _ in range(3):
        result = sparse_allreduce(torch.randn(1000), torch.zeros(1000), compression=compression)
        assert 1 <= int((result != 0).sum()) <= 10 * hvd.size()


def test_an_interrupted_call_has_ended_before_its_memory_is_freed(monkeypatch):
    waiting = []

    def interrupted(steps):
        waiting.append(steps._exchange)
        hvd.barrier()  # otherwise others learn of it before they get here
        raise KeyboardInterrupt

    monkeypatch.setattr(ArraySteps, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sparse_allreduce(torch.ones(64), torch.zeros(64), compression=TopK(density=1.0))
    assert waiting[0].closed
    monkeypatch.undo()
    result = sparse_allreduce(torch.ones(64), torch.zeros(64), compression=TopK(density=1.0))
    assert torch.equal(result, torch.ones(64))


def test_views_are_exchanged_in_logical_order():
    tensor = integers(0).t()
    assert not tensor.is_contiguous()
    result = sparse_allreduce(
        tensor, torch.zeros(40, 30), compression=TopK(density=1.0), op=hvd.Sum
    )
    assert result.is_contiguous()
    assert torch.equal(result.double().flatten(), total(tensor))


def test_an_empty_tensor_needs_no_exchange():
    result = sparse_allreduce(torch.zeros(0, 3), torch.zeros(0))
    assert result.shape == (0, 3)


def test_nan_on_one_rank_raises_on_all_and_the_residual_keeps_the_rest():
    tensor, residual = integers(1), torch.zeros(1200)
    if hvd.rank() == hvd.size() - 1:
        tensor[3, 4] = float("nan")
    with pytest.raises(NonFiniteGradientError, match=f"rank {hvd.size() - 1}"):
        sparse_allreduce(tensor, residual, compression=TopK(density=0.1), name="bad")
    assert torch.equal(residual, tensor.nan_to_num(0.0).flatten())
    sparse_allreduce(integers(2), residual, compression=TopK(density=0.1), name="bad")


@pytest.mark.parametrize(
    ("tensor", "residual", "match"),
    [
        (torch.zeros(4), torch.zeros(5), r"as many elements as tensor \(4\), got 5"),
        (torch.zeros(4), torch.zeros(4).double(), "float32, got torch.float64"),
        (torch.zeros(4), torch.zeros(8)[::2], "contiguous"),
        (torch.zeros(4), torch.zeros(4, requires_grad=True), "require grad"),
        (torch.zeros(4), torch.zeros(4, device="meta"), "on the CPU"),
        ([1.0], torch.zeros(1), "tensor must be a torch.Tensor, got list"),
    ],
)
def test_bad_residuals_are_refused(tensor, residual, match):
    with pytest.raises(InvalidArgumentError, match=match):
        sparse_allreduce(tensor, residual)


@pytest.mark.parametrize(
    ("tensor", "options", "match"),
    [
        (torch.zeros(4, dtype=torch.complex64), {}, "complex"),
        (torch.zeros(4, dtype=torch.int32), {}, "int32"),
        (torch.zeros(4), {"op": hvd.Adasum}, "op=Adasum"),
        (torch.zeros(2, 2).to_sparse(), {}, "layout"),
        (torch.zeros(4, device="meta"), {}, "meta"),
    ],
)
def test_what_it_cannot_do_is_refused(tensor, options, match):
    with pytest.raises(UnsupportedError, match=match):
        sparse_allreduce(tensor, torch.zeros(4), **options)


@pytest.mark.skipif(hvd.size() == 1, reason="a single rank agrees with itself")
def test_ranks_that_differ_are_told():
    numel = 50 if hvd.rank() == 0 else 60
    with pytest.raises(InvalidArgumentError, match=r"50.*rank 0|60.*rank"):
        sparse_allreduce(torch.zeros(numel), torch.zeros(numel))
    sparse_allreduce(torch.zeros(70), torch.zeros(70))


@pytest.mark.skipif(hvd.size() == 1, reason="a single rank sends nothing")
@pytest.mark.parametrize("preset", PRESETS)
def test_stats_tell_what_a_step_cost(preset):
    model = Toy()
    warmup = Warmup(steps=1, densities=(0.5,))
    compression = preset(
        adaptive=False, density=0.1, layers=Layers(min_numel=64, bucket_numel=1000), warmup=warmup
    )
    optimizer = distribute(model, compression)
    assert optimizer.exchange.stats.last is None
    for step in range(2):
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step))
        optimizer.step()
    last, sums = optimizer.exchange.stats.last, optimizer.exchange.stats.total
    assert last.step == 1
    assert sums.steps == 2
    numels = {"last": 600, "second": 1000, "first": 1200}
    if compression.layers.layer_wise:
        assert {b.bucket: b.numel for b in last.buckets} == numels
        assert {b.bucket: b.asked for b in last.buckets} == {
            name: math.ceil(numel / 10) for name, numel in numels.items()
        }
    else:
        assert [b.numel for b in last.buckets] == [2800]
    assert last.density_asked == pytest.approx(0.1)
    assert 0.03 < last.density_reached < 0.2
    for bucket in last.buckets:
        assert bucket.density_asked == bucket.asked / bucket.numel
        assert bucket.density_reached == bucket.selected / bucket.numel
        assert bucket.bytes_sent > 8 * bucket.selected
        assert bucket.route == "calls"
        assert bucket.bytes_received > 0
        assert bucket.select_seconds > 0
        assert bucket.exchange_seconds > 0
    assert last.bytes_sent == sum(b.bytes_sent for b in last.buckets) < sums.bytes_sent
    assert last.dense_bytes == 4 * 7
    assert sums.dense_bytes == 2 * 4 * 7
    assert 0 < last.wait_seconds < sums.wait_seconds


def test_stats_of_a_plain_optimizer_are_refused():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    with pytest.raises(InvalidArgumentError, match="SGD has no sparse compression"):
        _ = hvd_sparse.torch.Exchange(optimizer).stats
