"""What a sparse exchange finds out only while gradients come: refused by name, on all ranks."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.errors import ExchangeFailedError, UnsupportedError
from hvd_sparse.torch import LAGS, TopK
from tests.parallel.torch_ranks import (
    Toy,
    distribute,
    expect_error_on_every_rank,
    integer_gradients,
    on_the_culprit,
)

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")


def test_a_sparse_gradient_is_refused_by_name():
    embedding = torch.nn.Embedding(50, 40, sparse=True)
    optimizer = distribute(embedding, LAGS(adaptive=False, density=0.1, min_numel=64))

    def run():
        embedding(torch.tensor([hvd.rank()])).sum().backward()
        optimizer.step()

    with pytest.raises((UnsupportedError, ExchangeFailedError), match="'weight' is sparse: pass"):
        run()


def test_a_sparse_gradient_is_made_dense_where_that_was_asked_for():
    embedding = torch.nn.Embedding(50, 40, sparse=True)
    compression = TopK(density=1.0, min_numel=64)
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
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, min_numel=64))
    model.first.requires_grad_(True)

    def run():
        model.backward(integer_gradients(model, 0))
        optimizer.step()

    with pytest.raises((UnsupportedError, ExchangeFailedError), match="parameter 0 of group 0 was"):
        run()


def test_join_is_refused_while_there_is_a_sparse_optimizer():
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, min_numel=64))

    def run():
        on_the_culprit(hvd.join)
        optimizer.zero_grad()
        model.backward(integer_gradients(model, 0))
        optimizer.step()

    expect_error_on_every_rank(run, match=r"hvd.join\(\) cannot be used", kind=UnsupportedError)


@pytest.mark.runs_first
def test_join_works_when_the_last_sparse_optimizer_is_gone():
    model = Toy()
    optimizer = distribute(model, LAGS(adaptive=False, density=0.1, min_numel=64))
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    del optimizer
    assert 0 <= hvd.join() < hvd.size()
