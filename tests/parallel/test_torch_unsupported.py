"""Gradients that a sparse exchange cannot take are refused by name, on all ranks."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Layers
from hvd_sparse.errors import ExchangeFailedError, UnsupportedError
from hvd_sparse.pytorch import functions
from hvd_sparse.pytorch.attachment import attachment_of
from hvd_sparse.pytorch.guards import check_not_capturing
from hvd_sparse.torch import LAGS, TopK, sparse_allreduce
from tests.parallel.torch_ranks import (
    CULPRIT,
    Toy,
    assert_same_on_all_ranks,
    distribute,
    expect_error_on_every_rank,
    integer_gradients,
    on_the_culprit,
)
from tests.torch_model import residuals

GPU = torch.device("cuda:0")

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")


def test_a_sparse_gradient_is_refused_by_name():
    embedding = torch.nn.Embedding(50, 40, sparse=True)
    optimizer = distribute(
        embedding, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64))
    )

    def run():
        embedding(torch.tensor([hvd.rank()])).sum().backward()
        optimizer.step()

    with pytest.raises((UnsupportedError, ExchangeFailedError), match="'weight' is sparse: pass"):
        run()


def test_a_sparse_gradient_is_made_dense_where_that_was_asked_for():
    embedding = torch.nn.Embedding(50, 40, sparse=True)
    compression = TopK(density=1.0, layers=Layers(min_numel=64))
    optimizer = distribute(embedding, compression, sparse_as_dense=True)
    for _ in range(2):
        optimizer.zero_grad()
        embedding(torch.tensor([hvd.rank()])).sum().backward()
        optimizer.step()
        expected = (torch.arange(50) < hvd.size()).float()[:, None].expand(50, 40)
        assert torch.equal(embedding.weight.grad, expected)


def test_a_parameter_that_was_added_later_is_refused():
    model = Toy()
    model.first.requires_grad_(False)
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))
    model.first.requires_grad_(True)

    def run():
        model.backward(integer_gradients(model, 0))
        optimizer.step()

    with pytest.raises((UnsupportedError, ExchangeFailedError), match="parameter 0 of group 0 was"):
        run()


@pytest.mark.parametrize("arrives", [True, False])
def test_a_parameter_that_was_moved_is_refused(monkeypatch, arrives):
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))
    exchange = attachment_of(optimizer).exchange
    elsewhere = torch.device("meta")  # as far as known, the device of all previous parameters

    def run():
        on_the_culprit(lambda: monkeypatch.setattr(exchange._guard, "device", elsewhere))
        optimizer.zero_grad()
        if arrives:
            model.backward(integer_gradients(model, 0))
        optimizer.step()

    expect_error_on_every_rank(
        run, match="was moved from device 'meta' to 'cpu' after", kind=UnsupportedError
    )


@pytest.mark.parametrize("shape", [(40, 30), (7,)], ids=["sparse", "dense"])
def test_a_gradient_that_is_to_be_differentiated_is_refused(shape):
    model = Toy({"w": shape})
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))

    def run():
        optimizer.zero_grad()
        ((model.w - 1) ** 2).sum().backward(create_graph=hvd.rank() == CULPRIT)
        optimizer.step()

    expect_error_on_every_rank(run, match="'w' has a graph of its own", kind=UnsupportedError)


def test_second_derivatives_are_taken_beside_an_exchange():
    model = Toy({"w": (40, 30)})
    optimizer = distribute(model, TopK(density=1.0, layers=Layers(min_numel=64)))
    loss = ((model.w - 1) ** 2).sum()
    (slope,) = torch.autograd.grad(loss, model.w, create_graph=True)
    (loss + (slope**2).sum()).backward()
    optimizer.step()
    assert torch.equal(model.w.grad, torch.full((40, 30), -10.0 * hvd.size()))


def test_join_is_refused_while_there_is_a_sparse_optimizer():
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))

    def run():
        on_the_culprit(hvd.join)
        optimizer.zero_grad()
        model.backward(integer_gradients(model, 0))
        optimizer.step()

    expect_error_on_every_rank(run, match=r"hvd.join\(\) cannot be used", kind=UnsupportedError)


def start_capture(optimizer, monkeypatch):
    """Pretends that this rank's gradients are on a device whose stream is being captured."""
    monkeypatch.setattr(attachment_of(optimizer).exchange._guard, "device", GPU)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


def end_capture(optimizer, monkeypatch):
    monkeypatch.setattr(attachment_of(optimizer).exchange._guard, "device", torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def test_a_captured_backward_is_refused_on_all_ranks_and_touches_no_gradient(monkeypatch):
    model = Toy()
    optimizer = distribute(model, TopK(density=0.5, layers=Layers(min_numel=64)))
    gradients = integer_gradients(model, 0)

    def run():
        on_the_culprit(lambda: start_capture(optimizer, monkeypatch))
        optimizer.zero_grad()
        model.backward(gradients)
        optimizer.step()

    expect_error_on_every_rank(run, match="into a CUDA graph", kind=UnsupportedError)
    if hvd.rank() == CULPRIT:
        arrived = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        assert arrived
        assert all(torch.equal(grad, gradients[name]) for name, grad in arrived.items())
        assert not any(residual.any() for residual in residuals(optimizer).values())


def test_a_captured_backward_of_all_ranks_is_refused_on_all(monkeypatch):
    model = Toy()
    optimizer = distribute(model, LAGS(layers=Layers(min_numel=64)))
    start_capture(optimizer, monkeypatch)
    # A rank that comes later learns of the first one's error.
    with pytest.raises((UnsupportedError, ExchangeFailedError), match="into a CUDA graph"):
        model.backward(integer_gradients(model, 0))


def test_a_step_that_exchanges_while_it_is_captured_is_refused(monkeypatch):
    model = Toy()
    optimizer = distribute(model, TopK(density=0.5, layers=Layers(min_numel=64)))

    def run():
        optimizer.zero_grad()
        model.backward(integer_gradients(model, 0))
        on_the_culprit(lambda: start_capture(optimizer, monkeypatch))
        optimizer.step()

    expect_error_on_every_rank(run, match="into a CUDA graph", kind=UnsupportedError)


def test_a_step_that_follows_an_own_synchronize_may_be_captured(monkeypatch):
    model = Toy()
    optimizer = distribute(model, TopK(density=1.0, layers=Layers(min_numel=64)))
    for _ in range(2):
        optimizer.zero_grad()
        model.backward(integer_gradients(model, 0))
        optimizer.synchronize()
        start_capture(optimizer, monkeypatch)
        with optimizer.skip_synchronize():
            optimizer.step()
        end_capture(optimizer, monkeypatch)
    assert_same_on_all_ranks(model.parameters())


def test_one_tensor_is_refused_while_a_graph_is_captured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    check_not_capturing(torch.device("cpu"))  # no stream writes gradients on the CPU
    with pytest.raises(UnsupportedError, match="device 'cuda:3' is being captured"):
        check_not_capturing(torch.device("cuda:3"))
    tensor, residual = torch.ones(10), torch.zeros(10)
    monkeypatch.setattr(functions, "check_not_capturing", lambda _: check_not_capturing(GPU))
    with pytest.raises(UnsupportedError, match="is being captured into a CUDA graph"):
        sparse_allreduce(tensor, residual)
    assert not residual.any()


@pytest.mark.runs_first
def test_join_works_when_the_last_sparse_optimizer_is_gone():
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=64)))
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    del optimizer
    assert 0 <= hvd.join() < hvd.size()
