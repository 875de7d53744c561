"""sparse_allreduce over process groups, and the functions that look at an optimizer."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.compression import Feedback, Layers
from hvd_sparse.ddp import (
    LAGS,
    Exchange,
    GTopK,
    TopK,
    attach,
    host,
    sparse_allreduce,
)
from hvd_sparse.errors import (
    ExchangeFailedError,
    InvalidArgumentError,
    NonFiniteGradientError,
    UnsupportedError,
)
from tests.dense_sums import DENSE_SUMS
from tests.gpus import DEVICE
from tests.parallel_ddp.ddp_framework import Toy


def tensor_of(rank, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-9, 10, (30, 40), generator=generator).to(DEVICE, dtype)


def residual_of(numel):
    return torch.zeros(numel, device=DEVICE)


def total(tensor, group=None):
    summed = tensor.double()
    dist.all_reduce(summed, group=group)
    return summed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_backend_over_mpi_is_given_no_sums_in_16_bits(monkeypatch, several_ranks, dtype):
    summed = []

    def all_reduce(tensor, *args, **options):
        summed.append(tensor.dtype)
        return plain(tensor, *args, **options)

    plain = dist.all_reduce
    monkeypatch.setattr(host, "_backends_of", lambda group: {"cpu": "mpi"})
    monkeypatch.setattr(host.dist, "all_reduce", all_reduce)
    ddp = DistributedDataParallel(Toy(dtype=dtype))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    attach(ddp, optimizer, LAGS)  # times sums of float16, and measures dense steps
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        gradients = {
            name: torch.randint(-9, 10, one.shape, generator=generator).to(dtype)
            for name, one in ddp.module.named_parameters()
        }
        sums = {name: total(one) for name, one in gradients.items()}
        optimizer.zero_grad()
        ddp(gradients).backward()
        for name, one in ddp.module.named_parameters():
            average = (sums[name] / dist.get_world_size()).to(torch.float32).to(dtype)
            assert torch.equal(one.grad, average), name
        optimizer.step()
    assert summed
    assert not {torch.float16, torch.bfloat16} & set(summed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize(
    "compression", [TopK(density=0.05), GTopK, LAGS(adaptive=False), *DENSE_SUMS.values()]
)
def test_a_sum_and_what_is_left_are_what_was_given(framework, compression, dtype):
    tensor, residual = tensor_of(framework.rank, dtype), residual_of(1200)
    for _ in range(3):
        before = residual.double()
        result = sparse_allreduce(
            tensor, residual, compression=compression, op=dist.ReduceOp.SUM, name=str(dtype)
        )
        owed = tensor.double().view(-1) + before - residual.double()
        assert torch.equal(total(owed), result.double().view(-1))
        assert result.shape == tensor.shape
        assert result.dtype == dtype


def test_the_default_is_an_average(framework):
    tensor = torch.full((20, 20), 6.0, device=DEVICE)
    result = sparse_allreduce(tensor, residual_of(400), compression=TopK(density=1.0))
    assert torch.equal(result, tensor)


@pytest.mark.usefixtures("several_ranks")
def test_a_group_sums_by_itself(framework, first_and_last):
    tensor = tensor_of(framework.rank)
    if not first_and_last.included():
        with pytest.raises(InvalidArgumentError, match="group must contain this process"):
            sparse_allreduce(tensor, residual_of(1200), group=dist.GroupMember.NON_GROUP_MEMBER)
        return
    result = sparse_allreduce(
        tensor,
        residual_of(1200),
        compression=TopK(density=1.0),
        op=dist.ReduceOp.SUM,
        group=first_and_last.group,
    )
    assert torch.equal(result.double(), total(tensor, first_and_last.group))


@pytest.mark.usefixtures("several_ranks")
def test_a_tensor_that_is_not_finite_is_refused_on_all_ranks(framework):
    tensor, residual = tensor_of(framework.rank), residual_of(1200)
    if framework.rank == 0:
        tensor[0, 0] = math.inf
    with pytest.raises(NonFiniteGradientError, match="rank 0"):
        sparse_allreduce(tensor, residual)
    assert residual.isfinite().all()


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("calls", [0, 1], ids=["the first call", "a later call"])
def test_an_argument_that_one_rank_refuses_ends_the_call_on_all(framework, calls):
    tensor, residual = tensor_of(framework.rank), residual_of(1200)
    with pytest.raises(InvalidArgumentError):  # on all ranks: the next call is the first
        sparse_allreduce(tensor, tensor)
    for _ in range(calls):
        sparse_allreduce(tensor, residual)
    for name in (None, "another"):  # known to the exchange, and compared first
        with pytest.raises(
            InvalidArgumentError if framework.rank == 1 or not calls else ExchangeFailedError,
            match=r"residual must have as many elements as tensor \(1200\), got 3",
        ):
            sparse_allreduce(tensor, residual_of(3) if framework.rank == 1 else residual, name=name)
        for _ in range(calls):
            sparse_allreduce(tensor, residual)
    result = sparse_allreduce(tensor, residual, compression=TopK(density=1.0))
    framework.assert_same_on_all_ranks({"result": result.cpu().numpy()})


def test_a_residual_shares_no_memory_with_the_tensor():
    memory = torch.ones(30, device=DEVICE)
    for tensor, residual in (
        (memory, memory),
        (memory[:20], memory[10:]),
        (memory[::2], memory[1:16]),
    ):
        kept = memory.clone()
        with pytest.raises(InvalidArgumentError, match="residual must not share memory"):
            sparse_allreduce(tensor, residual)
        assert torch.equal(memory, kept)


def test_other_reductions_are_refused():
    with pytest.raises(UnsupportedError, match=r"ReduceOp\.AVG or ReduceOp\.SUM"):
        sparse_allreduce(torch.ones(4), torch.zeros(4), op=dist.ReduceOp.MAX)


@pytest.mark.usefixtures("several_ranks")
def test_the_functions_of_an_optimizer_are_those_of_horovods_interface(framework, verdict):
    verdict(sparse=True)
    ddp = DistributedDataParallel(Toy().to(DEVICE))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    exchange = attach(
        ddp,
        optimizer,
        LAGS(layers=Layers(min_numel=64), warmup=None, feedback=Feedback(momentum="keep")),
    )
    first, told = exchange.tuning.stage, []
    exchange.watch(lambda metrics, step: told.append((step, metrics)), every=4, norms=True)
    for step in range(12):
        optimizer.exchange.mark_step(f"step {step}")
        optimizer.zero_grad()
        gradients = framework.integer_gradients(step)
        ddp({name: torch.from_numpy(one).to(DEVICE) for name, one in gradients.items()}).backward()
        optimizer.step()
    assert [step for step, _ in told] == [0, 4, 8]
    assert told[-1][1]["residual_norm"] >= 0
    assert optimizer.exchange.stats.total.steps == 12
    assert "12 steps" in optimizer.exchange.summary()
    assert optimizer.exchange.tuning.stage is not first
    optimizer.exchange.replan()
    assert optimizer.exchange.tuning.stage is first


@pytest.mark.usefixtures("several_ranks")
def test_the_handle_goes_on_when_a_module_is_attached_again():
    net = torch.nn.Linear(30, 40).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    handles = []
    for steps in (1, 2):
        ddp = DistributedDataParallel(net)
        handles.append(attach(ddp, optimizer, TopK(layers=Layers(min_numel=64))))
        ddp(torch.ones(2, 30, device=DEVICE)).sum().backward()
        optimizer.step()
        assert optimizer.exchange is handles[-1]
        assert [one.stats.total.steps for one in handles] == [steps] * len(handles)


def test_the_timeout_of_a_group_is_known():
    group = dist.new_group(timeout=timedelta(seconds=77))
    assert host.GroupHost(group).timeout == host.GroupHost(group).world().timeout == 77
    assert host.GroupHost().timeout == 1800  # Gloo's default


def test_a_plain_optimizer_has_no_exchange():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    exchange = Exchange(optimizer)
    for look in (lambda: exchange.stats, exchange.summary, lambda: exchange.tuning):
        with pytest.raises(InvalidArgumentError, match="has no sparse compression"):
            look()


@pytest.mark.usefixtures("several_ranks")
def test_a_state_dict_without_residuals_is_told_once(framework, caplog):
    from torch.distributed.checkpoint import state_dict as distributed  # slow to import

    ddp = DistributedDataParallel(torch.nn.Linear(30, 40))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    attach(ddp, optimizer, TopK(layers=Layers(min_numel=1)))
    ddp(torch.ones(2, 30) * framework.rank).sum().backward()
    optimizer.step()
    optimizer.state_dict()
    assert not caplog.records
    saved = distributed.get_optimizer_state_dict(ddp, optimizer)
    distributed.set_optimizer_state_dict(ddp, optimizer, saved)
    assert [one.getMessage() for one in caplog.records if "save_checkpoint" in one.getMessage()]
    assert len(caplog.records) == 1
    residuals = optimizer.state_dict()["hvd_sparse"]["residuals"]
    assert not any(one.any() for one in residuals.values())
