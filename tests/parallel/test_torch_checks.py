"""With HVD_SPARSE_CHECK=1, ranks at different steps are found before they exchange anything."""

from __future__ import annotations

import os

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Layers
from hvd_sparse.errors import InvalidArgumentError, RanksDisagreeError
from hvd_sparse.ranks import transport
from hvd_sparse.torch import LAGS
from tests.parallel.torch_ranks import (
    Toy,
    assert_nothing_is_lost,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
)
from tests.torch_model import residuals

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank disagrees with nobody")

COMPRESSION = LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64))
LAST = hvd.size() - 1
TRANSPORTS = ["tcp"] if transport.problem_with_mpi(hvd) else ["mpi", "tcp"]


@pytest.fixture(params=TRANSPORTS)
def checks(request, monkeypatch):
    if os.environ.get(transport.VARIABLE, request.param) != request.param:
        pytest.skip("this job has another transport")
    monkeypatch.setenv(transport.VARIABLE, request.param)
    monkeypatch.setenv("HVD_SPARSE_CHECK", "1")


def test_ranks_that_agree_exchange_as_ever(checks):
    model = Toy()
    optimizer = distribute(model, COMPRESSION)
    for step in range(3):
        optimizer.exchange.mark_step(f"batch {step}")
        optimizer.zero_grad()
        gradients = integer_gradients(model, step)
        before = residuals(optimizer)
        model.backward(gradients)
        optimizer.step()
        assert_nothing_is_lost(model, step, before, optimizer, gradients)


def test_a_rank_that_skipped_a_step_is_found_by_its_learning_rate(checks):
    model = Toy()
    optimizer = distribute(model, COMPRESSION)

    def run():
        for step in range(3):
            if step == 1 and hvd.rank() == LAST:
                continue
            for group in optimizer.param_groups:
                group["lr"] = 0.5**step
            optimizer.zero_grad()
            model.backward(integer_gradients(model, step))
            optimizer.step()

    with pytest.raises(RanksDisagreeError) as error:
        run()
    assert "step 1, bucket " in str(error.value)
    assert f"rank {LAST} " in str(error.value)
    assert "learning rate 0.5" in str(error.value)
    assert "learning rate 0.25" in str(error.value)


def test_ranks_whose_groups_differ_in_order_agree(checks):
    model = Toy()
    groups = [{"params": [p], "lr": 2.0**-index} for index, p in enumerate(model.parameters())]
    optimizer = distribute(model, COMPRESSION, optimizer=torch.optim.SGD(groups, lr=1.0))
    if hvd.rank() == LAST:
        optimizer.param_groups.reverse()
    for step in range(2):
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step))
        optimizer.step()
    assert_same_on_all_ranks(model.parameters())


def test_a_rank_at_another_batch_is_found_by_its_mark(checks):
    model = Toy()
    optimizer = distribute(model, COMPRESSION)
    optimizer.exchange.mark_step("batch 8" if hvd.rank() == LAST else "batch 7")
    with pytest.raises(RanksDisagreeError, match=r"marked 'batch [78]'.*marked 'batch [78]'"):
        model.backward(integer_gradients(model, 0))
        optimizer.step()


def test_a_rank_without_gradients_in_a_step_is_at_the_same_step(checks):
    model = Toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer = distribute(model, COMPRESSION, optimizer=optimizer)
    for step in range(3):
        optimizer.zero_grad()
        if step != 1 or hvd.rank() != LAST:
            model.backward(integer_gradients(model, step))
        optimizer.step()
        scheduler.step()


def test_ranks_that_do_not_all_check_are_told(monkeypatch):
    monkeypatch.setenv("HVD_SPARSE_CHECK", "1" if hvd.rank() == LAST else "0")
    with pytest.raises(InvalidArgumentError, match=f"is 1 on rank {LAST} and 0 on rank 0"):
        distribute(Toy(), COMPRESSION)


def test_without_checks_marks_mean_nothing(monkeypatch):
    monkeypatch.delenv("HVD_SPARSE_CHECK", raising=False)
    model = Toy()
    optimizer = distribute(model, COMPRESSION)
    optimizer.exchange.mark_step(f"rank {hvd.rank()}")
    model.backward(integer_gradients(model, 0))
    optimizer.step()
