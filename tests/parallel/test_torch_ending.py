"""What ended an exchange on one rank is what the others raise."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import horovod.torch as hvd
import pytest
import torch
from horovod.common.exceptions import HorovodInternalError

from hvd_sparse.errors import ExchangeFailedError
from hvd_sparse.exchange import core_handle
from hvd_sparse.torch import LAGS, dense
from hvd_sparse.torch.attachment import attachment_of
from tests.parallel.torch_ranks import (
    Toy,
    assert_nothing_is_lost,
    distribute,
    integer_gradients,
)

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")


@pytest.mark.parametrize("known", ["before", "after"])
def test_a_shutdown_of_horovod_is_not_mistaken_for_the_reason(known, monkeypatch):
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, min_numel=64))
    exchange = attachment_of(optimizer).exchange
    reason = threading.Timer(0.3, exchange.fail, ["a bug in the user's code"])
    if hvd.rank() == hvd.size() - 1:
        reason.start()

    def once_it_is_known():
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            exchange._exchange.check()
            time.sleep(0.01)

    def shut_down(*_, **__):
        if known == "before":
            with pytest.raises(ExchangeFailedError):
                once_it_is_known()
        raise HorovodInternalError("Horovod has been shut down")

    monkeypatch.setattr(dense.hvd_ops, "allreduce_async_", shut_down)
    with pytest.raises(ExchangeFailedError, match="a bug in the user's code"):
        model.backward({"bias": integer_gradients(model, 0)["bias"]})


def test_an_error_of_horovod_itself_stays_what_it_is(monkeypatch):
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, min_numel=64))
    monkeypatch.setattr(core_handle, "_CAUSE_SECONDS", 0.1)

    def fails(*_, **__):
        raise HorovodInternalError("Mismatched shapes")

    monkeypatch.setattr(dense.hvd_ops, "allreduce_async_", fails)
    with pytest.raises(HorovodInternalError, match="Mismatched shapes"):
        model.backward({"bias": integer_gradients(model, 0)["bias"]})
    assert attachment_of(optimizer).exchange.steps == 0


def test_a_rank_that_leaves_out_a_dense_step_is_not_waited_for_for_ever(monkeypatch):
    model = Toy()
    optimizer = distribute(model, LAGS(density=0.1, min_numel=64))
    exchange = attachment_of(optimizer).exchange
    monkeypatch.setenv("HVD_SPARSE_TIMEOUT", "1")

    def step_or_hear_of_it():
        if hvd.rank() < hvd.size() - 1:
            model.backward(integer_gradients(model, 0))
            optimizer.synchronize()
        while True:  # the time limit of every test ends it
            exchange._exchange.check()
            time.sleep(0.01)

    match = r"gave up waiting for Horovod's operation 'hvd_sparse\.\d+\.\w+' after 1 s"
    with pytest.raises(ExchangeFailedError, match=match):
        step_or_hear_of_it()


def test_what_fails_after_a_step_that_counts_is_told_by_the_next_one(monkeypatch):
    """All ranks have taken the step by then: whoever did not would lose what was delivered."""
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, min_numel=64))
    exchange = attachment_of(optimizer).exchange
    gradients = integer_gradients(model, 0)

    def fails():
        raise RuntimeError("a bug of what follows")

    if hvd.rank() == hvd.size() - 1:
        monkeypatch.setattr(exchange._sparse, "end_step", fails)
    model.backward(gradients)
    optimizer.step()
    assert_nothing_is_lost(model, 0, {}, optimizer, gradients)
    assert all(torch.equal(p, -p.grad) for p in model.parameters())
    with pytest.raises(ExchangeFailedError, match="a bug of what follows"):
        while True:
            model.backward(integer_gradients(model, 1))
            optimizer.step()


def test_nothing_keeps_the_parameters_of_a_discarded_optimizer():
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, min_numel=64))
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    left = [weakref.ref(param) for param in model.parameters()]
    del model, optimizer
    gc.collect()
    assert [param() for param in left] == [None] * len(left)
