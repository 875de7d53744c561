"""watch() and summary() report the costs of a step."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Layers
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.torch import Dense, Exchange, GTopK
from tests.parallel.torch_ranks import (
    Toy,
    distribute,
    integer_gradients,
)
from tests.torch_model import residuals

several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")
COMPRESSION = GTopK(density=0.1, layers=Layers(min_numel=64))


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        model.backward(integer_gradients(model, step))
        optimizer.step()


@several_ranks
def test_every_so_many_steps_are_told_with_their_numbers():
    model = Toy()
    optimizer = distribute(model, COMPRESSION)
    told = []
    optimizer.exchange.watch(
        lambda metrics, step: told.append((step, metrics)), every=2, norms=True
    )
    train(model, optimizer, range(5))
    assert [step for step, _ in told] == [0, 2, 4]
    last = told[-1][1]
    assert last["sparse"] == 1
    assert last["bytes_sent"] == optimizer.exchange.stats.last.bytes_sent
    left = torch.cat(list(residuals(optimizer).values()))
    assert last["residual_norm"] == pytest.approx(float(left.norm()))
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
    ratio = float(left.norm() / gradient.norm())
    assert last["residual_over_gradient"] == pytest.approx(ratio)


@several_ranks
def test_the_summary_counts_all_steps():
    model = Toy()
    optimizer = distribute(model, COMPRESSION)
    assert optimizer.exchange.summary() == "no step was exchanged"
    train(model, optimizer, range(3))
    assert optimizer.exchange.summary().startswith("3 steps, 3 of them sparse: ")


@several_ranks
def test_the_summary_of_a_dense_sum_tells_what_it_saves():
    model = Toy()
    optimizer = distribute(model, Dense(values="bfloat16"))
    train(model, optimizer, range(3))
    line = optimizer.exchange.summary()
    assert line.startswith("3 steps, 3 of them summed by hvd_sparse: ")
    assert "(uncompressed: " in line
    assert "waits" not in line


def test_one_rank_may_watch_too():
    optimizer = distribute(Toy(), COMPRESSION)
    optimizer.exchange.watch(lambda metrics, step: None)
    if hvd.size() == 1:
        assert "nobody" in optimizer.exchange.summary()


def test_bad_arguments_are_refused():
    optimizer = distribute(Toy(), COMPRESSION)
    with pytest.raises(InvalidArgumentError, match="every must"):
        optimizer.exchange.watch(lambda metrics, step: None, every=0)
    with pytest.raises(InvalidArgumentError, match="got str"):
        optimizer.exchange.watch("runs")
    plain = torch.optim.SGD(Toy().parameters(), lr=1.0)
    with pytest.raises(InvalidArgumentError, match="has no sparse compression"):
        Exchange(plain).watch(lambda metrics, step: None)
