"""The error that ended an exchange on one rank is raised on all others."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import horovod.torch as hvd
import pytest
import torch
from horovod.common.exceptions import HorovodInternalError

from hvd_sparse.compression import Layers
from hvd_sparse.errors import ExchangeFailedError
from hvd_sparse.exchange import core_handle
from hvd_sparse.pytorch.attachment import attachment_of
from hvd_sparse.torch import LAGS, host
from tests.parallel.torch_ranks import (
    CULPRIT,
    Toy,
    assert_nothing_is_lost,
    distribute,
    integer_gradients,
    on_the_culprit,
    total,
)

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")


def error_of(call):
    """Returns the error that a call raises, as text; None if it raises none."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def wait_for_the_end(exchange):
    """Waits until this rank knows that the exchange has ended; the test's time limit applies."""
    while exchange.core.end() is None:
        time.sleep(0.01)


def test_a_loop_that_goes_on_after_an_end_is_told_the_first_cause_in_every_step():
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))

    def step():
        optimizer.zero_grad()
        model.backward(integer_gradients(model, 0))
        on_the_culprit(lambda: model.first.grad.mul_(0.5))
        optimizer.step()

    texts = [error_of(step)]  # a rank that has received all it needs takes this step
    wait_for_the_end(attachment_of(optimizer).exchange)
    texts += [error_of(step) for _ in range(3)]
    assert all("'first' was written to after loss.backward" in text for text in texts if text)
    assert all(texts[hvd.rank() != CULPRIT :])
    assert texts[1].startswith("ExchangeFailedError: ")


LATER = {
    "zero_grad": lambda model, optimizer, _: optimizer.zero_grad(),
    "backward": lambda model, optimizer, _: model.backward(integer_gradients(model, 1)),
    "step": lambda model, optimizer, _: optimizer.step(),
    "synchronize": lambda model, optimizer, _: optimizer.synchronize(),
    "load": lambda model, optimizer, _: optimizer.load_state_dict(optimizer.state_dict()),
    "reset": lambda model, optimizer, _: optimizer.exchange.reset_residual(),
    "passes": lambda model, optimizer, _: optimizer.set_backward_passes_per_step(2),
    "replan": lambda model, optimizer, _: optimizer.exchange.replan(),
    "save": lambda model, optimizer, folder: optimizer.exchange.save_checkpoint(folder, model),
}


@pytest.mark.parametrize("call", LATER)
def test_every_later_call_tells_the_first_cause_whose_gradients_wait(call, tmp_path):
    model = Toy()
    optimizer = distribute(model, LAGS(density=0.1, layers=Layers(min_numel=64)))
    exchange = attachment_of(optimizer).exchange
    model.backward({"first": integer_gradients(model, 0)["first"]})
    total(torch.zeros(1))  # all ranks have reached this point
    on_the_culprit(lambda: exchange.fail("a bug in the user's code"))
    wait_for_the_end(exchange)
    texts = [error_of(lambda: LATER[call](model, optimizer, tmp_path / "saved")) for _ in range(2)]
    assert all("a bug in the user's code" in str(text) for text in texts), texts
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("call", ["backward", "step", "synchronize", "replan", "save"])
def test_an_end_between_two_steps_is_told_by_what_needs_the_other_ranks(call, tmp_path):
    model = Toy()
    optimizer = distribute(model, LAGS(density=0.1, layers=Layers(min_numel=64)))
    exchange = attachment_of(optimizer).exchange
    on_the_culprit(lambda: exchange.fail("a bug in the user's code"))
    wait_for_the_end(exchange)
    for _ in range(2):
        optimizer.zero_grad()  # does not raise
        text = error_of(lambda: LATER[call](model, optimizer, tmp_path / "saved"))
        assert "a bug in the user's code" in str(text)


def test_an_interrupt_stays_one_after_the_exchange_has_ended():
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))
    exchange = attachment_of(optimizer).exchange
    on_the_culprit(lambda: exchange.fail("a bug in the user's code"))
    wait_for_the_end(exchange)
    assert isinstance(exchange.end(KeyboardInterrupt()), KeyboardInterrupt)


@pytest.mark.parametrize("known", ["before", "after"])
def test_a_shutdown_of_horovod_is_not_mistaken_for_the_reason(known, monkeypatch):
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))
    exchange = attachment_of(optimizer).exchange
    reason = threading.Timer(0.3, exchange.fail, ["a bug in the user's code"])
    if hvd.rank() == hvd.size() - 1:
        reason.start()

    def once_it_is_known():
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            exchange.core.check()
            time.sleep(0.01)

    def shut_down(*_, **__):
        if known == "before":
            with pytest.raises(ExchangeFailedError):
                once_it_is_known()
        raise HorovodInternalError("Horovod has been shut down")

    monkeypatch.setattr(host.hvd_ops, "allreduce_async_", shut_down)
    with pytest.raises(ExchangeFailedError, match="a bug in the user's code"):
        model.backward({"bias": integer_gradients(model, 0)["bias"]})


def test_an_error_of_horovod_itself_stays_what_it_is(monkeypatch):
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))
    monkeypatch.setattr(core_handle, "_CAUSE_SECONDS", 0.1)

    def fails(*_, **__):
        raise HorovodInternalError("Mismatched shapes")

    monkeypatch.setattr(host.hvd_ops, "allreduce_async_", fails)
    with pytest.raises(HorovodInternalError, match="Mismatched shapes"):
        model.backward({"bias": integer_gradients(model, 0)["bias"]})
    assert attachment_of(optimizer).exchange.steps.count == 0


def test_a_rank_that_leaves_out_a_dense_step_is_not_waited_for_for_ever(monkeypatch):
    model = Toy()
    optimizer = distribute(model, LAGS(density=0.1, layers=Layers(min_numel=64)))
    exchange = attachment_of(optimizer).exchange
    monkeypatch.setenv("HVD_SPARSE_TIMEOUT_SECONDS", "1")

    def step_or_hear_of_it():
        if hvd.rank() < hvd.size() - 1:
            model.backward(integer_gradients(model, 0))
            optimizer.synchronize()
        while True:  # ended by the time limit of every test
            exchange.core.check()
            time.sleep(0.01)

    match = r"gave up waiting for Horovod's operation 'hvd_sparse\.\d+\.\w+' after 1 s"
    with pytest.raises(ExchangeFailedError, match=match):
        step_or_hear_of_it()


def test_what_fails_after_a_step_that_counts_is_told_by_the_next_one(monkeypatch):
    """All ranks have taken the step by then: a rank that did not would lose what was delivered."""
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))
    exchange = attachment_of(optimizer).exchange
    gradients = integer_gradients(model, 0)

    def fails():
        raise RuntimeError("a bug of what follows")

    if hvd.rank() == hvd.size() - 1:
        monkeypatch.setattr(exchange.steps, "end_step", fails)
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
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    left = [weakref.ref(param) for param in model.parameters()]
    del model, optimizer
    gc.collect()
    assert [param() for param in left] == [None] * len(left)
