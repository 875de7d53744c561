"""A step committed on one rank is committed on all.

Errors that could follow the commit are raised before it, or are handled: then the rank takes the
step like the others.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import horovod.torch as hvd
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hvd_sparse import log
from hvd_sparse.compression import Layers
from hvd_sparse.errors import ExchangeFailedError, UnsupportedError
from hvd_sparse.pytorch.attachment import attachment_of
from hvd_sparse.torch import LAGS, TopK
from tests.parallel.torch_ranks import (
    CULPRIT,
    Toy,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
    on_the_culprit,
)
from tests.parallel.tuned_ranks import COMPRESSION
from tests.verdict import CYCLE

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")


def expanded(_, grad):
    return torch.ones(()).expand(grad.shape)


def windows(_, grad):
    return torch.ones(grad.numel()).as_strided(grad.shape, (1,) * grad.ndim)


def of_inference(_, grad):
    with torch.inference_mode():
        return torch.ones(grad.shape)


def a_part_of_another(model, grad):
    return model.first.grad.view(-1)[: grad.numel()].view(grad.shape)


def to_differentiate(_, grad):
    return grad.clone().requires_grad_()


KINDS = [
    (expanded, "share memory"),
    (windows, "share memory"),
    (of_inference, r"torch.inference_mode\(\)"),
    (a_part_of_another, "shares memory with the gradient of 'first'"),
    (to_differentiate, "has a graph of its own"),
]


def expect_that_no_rank_takes_the_step(model, run, *, match):
    """No rank can have taken the step, since not all ranks have sent what it needs."""
    before = [p.detach().clone() for p in model.parameters()]
    kind = UnsupportedError if hvd.rank() == CULPRIT else ExchangeFailedError
    with pytest.raises(kind, match=match):
        run()
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    "compression", [LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)), LAGS()]
)
@pytest.mark.parametrize(
    ("make", "match", "name"),
    [
        (make, match, name)
        for make, match in KINDS
        for name in ("second", "bias")
        if (make, name) != (windows, "bias")  # whose windows have one entry
    ],
)
def test_a_gradient_that_takes_no_average_is_refused_before_any_rank_takes_the_step(
    make, match, name, compression
):
    model = Toy()
    optimizer = distribute(model, compression)

    def run():
        for parameter, gradient in integer_gradients(model, 0).items():
            getattr(model, parameter).grad = gradient
        bad = getattr(model, name)
        on_the_culprit(lambda: setattr(bad, "grad", make(model, bad.grad)))
        optimizer.step()

    expect_that_no_rank_takes_the_step(model, run, match=match)


def test_a_hook_that_leaves_such_a_gradient_is_refused_in_backward():
    model = Toy()

    def leave(p):
        on_the_culprit(lambda: setattr(p, "grad", torch.ones(()).expand(p.shape)))

    model.second.register_post_accumulate_grad_hook(leave)
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))

    def run():
        model.backward(integer_gradients(model, 0))
        optimizer.step()

    expect_that_no_rank_takes_the_step(model, run, match="gradient of 'second' share memory")


@pytest.mark.parametrize("layout", ["transposed", "strided", "one buffer"])
def test_a_gradient_of_another_layout_gets_its_average(layout):
    model = Toy({"w": (40, 30), "v": (40, 30)})
    optimizer = distribute(model, TopK(density=1.0, layers=Layers(min_numel=64)))
    gradients = integer_gradients(model, 0)
    buffer = torch.zeros(40, 60)
    layouts = {
        "transposed": lambda one: one.t().contiguous().t(),
        "strided": lambda one: torch.zeros(40, 60)[:, ::2].copy_(one),
        "one buffer": lambda one: (
            buffer[:, :30].copy_(one) if one is gradients["w"] else buffer[:, 30:].copy_(one)
        ),
    }
    for name, gradient in gradients.items():
        grad = layouts[layout](gradient) if hvd.rank() == CULPRIT else gradient.clone()
        getattr(model, name).grad = grad
    optimizer.step()
    for name, p in model.named_parameters():
        expected = sum(integer_gradients(model, 0, rank=rank)[name] for rank in range(hvd.size()))
        assert torch.equal(p.grad, expected)
    assert_same_on_all_ranks(model.parameters())


class TakesMemory(TorchDispatchMode):
    """Records operations whose results have memory of their own."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {
            one.untyped_storage().data_ptr()
            for one in (*args, *(kwargs or {}).values())
            if isinstance(one, torch.Tensor)
        }
        result = func(*args, **(kwargs or {}))
        if result.untyped_storage().data_ptr() not in given:
            self.found.append(str(func))
        return result


def test_nothing_takes_memory_between_the_commit_and_the_averages(verdict, monkeypatch):
    verdict(sparse=False)
    model = Toy(dtype=torch.bfloat16)
    optimizer = distribute(
        model, replace(COMPRESSION, feedback=replace(COMPRESSION.feedback, momentum=0.5))
    )

    def backward(step):
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step))

    for step in range(CYCLE):
        backward(step)
        optimizer.step()
    exchange = attachment_of(optimizer).exchange
    # These are added to the next gradients, which are narrow.
    assert any(part.any() for _, part in exchange.steps.state.residuals())
    mode, commit = TakesMemory(), exchange.steps.commit
    seen = []

    def commit_and_look():
        commit()
        mode.__enter__()

    def look_no_more(*_, **__):
        mode.__exit__(None, None, None)
        seen.extend(mode.found)

    backward(CYCLE)
    monkeypatch.setattr(exchange.steps, "commit", commit_and_look)
    monkeypatch.setattr(exchange, "_after_commit", look_no_more)
    optimizer.synchronize()
    assert seen == []


class Fails(logging.Handler):
    """A logging handler of the user's program."""

    def emit(self, record):
        raise OSError("no space left on device")


def test_an_error_after_the_commit_leaves_the_step_and_so_does_a_log_that_cannot_be_written(
    monkeypatch,
):
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))
    handler = Fails()
    exchange = attachment_of(optimizer).exchange

    def fail(*_, **__):
        raise MemoryError("no memory for a measurement")

    on_the_culprit(lambda: monkeypatch.setattr(exchange, "_after_commit", fail))
    on_the_culprit(lambda: log.logger.addHandler(handler))
    try:
        optimizer.zero_grad()
        model.backward(integer_gradients(model, 0))
        optimizer.step()
    finally:
        log.logger.removeHandler(handler)
    assert_same_on_all_ranks(model.parameters())
    assert any(p.any() for p in model.parameters())
    with pytest.raises(ExchangeFailedError, match="no memory for a measurement"):
        for _ in range(2):
            optimizer.zero_grad()
            model.backward(integer_gradients(model, 1))
            optimizer.step()


def test_a_watcher_that_fails_on_one_rank_does_not_keep_that_rank_from_the_step():
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))

    def fail(metrics, step):
        raise OSError("no space left on device")

    on_the_culprit(lambda: optimizer.exchange.watch(fail))
    for step in range(3):
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step))
        if hvd.rank() == CULPRIT:
            with pytest.raises(OSError, match="no space"):
                optimizer.step()
        else:
            optimizer.step()
        assert_same_on_all_ranks(model.parameters())
