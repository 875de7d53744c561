"""Local steps, with an optimizer of Horovod's."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.runner.elastic.worker import HostUpdateResult

from hvd_sparse.compression import Layers, LocalSteps, Outer
from hvd_sparse.errors import ExchangeFailedError
from hvd_sparse.torch import Dense, TopK
from tests.framework_laws import laws_in, streaming_steps
from tests.framework_laws import local_steps as laws
from tests.parallel.torch_ranks import (
    Toy,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
    take_over_from_rank_0,
    totals,
)
from tests.torch_model import residuals

globals().update(laws_in(laws, streaming_steps))

EVERY = 3
OUTER = Outer(lr=0.5, momentum=0.5, nesterov=True)
SPARSE = TopK(
    density=0.1, layers=Layers(min_numel=64), local_steps=LocalSteps(every=EVERY, outer=OUTER)
)

several = pytest.mark.skipif(hvd.size() == 1, reason="a single rank exchanges nothing")


def made(compression):
    model = Toy()
    return model, distribute(model, compression, op=hvd.Average)


def step(model, optimizer, number):
    """Takes a local step with integers of which averages over the ranks are integers, too."""
    gradients = integer_gradients(model, number)
    optimizer.zero_grad()
    model.backward({name: hvd.size() * one for name, one in gradients.items()})
    optimizer.step()
    return gradients


def weights_of(model):
    return [param.detach().clone() for param in model.parameters()]


def same(some, others):
    return all(torch.equal(*two) for two in zip(some, others, strict=True))


@several
@pytest.mark.parametrize("others", ["get it broadcast", "load it without residuals"])
def test_all_ranks_adopt_the_outer_momentum_of_rank_0(others):
    model, optimizer = made(Dense(local_steps=LocalSteps(every=EVERY, outer=OUTER)))
    for number in range(EVERY):
        step(model, optimizer, number)
    twin, taking_over = made(Dense(local_steps=LocalSteps(every=EVERY, outer=OUTER)))
    take_over_from_rank_0(taking_over, optimizer.state_dict(), others)
    twin.load_state_dict(model.state_dict())
    for number in range(EVERY, 3 * EVERY):
        step(model, optimizer, number)
        step(twin, taking_over, number)
    assert same(weights_of(model), weights_of(twin))
    assert_same_on_all_ranks(twin.parameters())


@several
def test_ranks_meet_before_an_elastic_state_is_saved_and_begin_an_interval_with_it():
    model, optimizer = made(SPARSE)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, number=0)
    state.sync()
    for number in range(EVERY + 1):
        step(model, optimizer, number)
    state.commit()
    assert optimizer.exchange.stats.last.step == 1
    assert_same_on_all_ranks(model.parameters())
    committed, kept = weights_of(model), residuals(optimizer)
    assert any(bool(one.any()) for one in kept.values())
    after = []
    for _ in range(2):
        for number in range(EVERY + 1, 3 * EVERY):
            step(model, optimizer, number)
        after.append(weights_of(model))
        state.restore()
        assert same(weights_of(model), committed)
        state.sync()
    assert same(*after)


@several
def test_what_ranks_did_since_they_met_is_not_lost_when_the_exchange_is_pooled():
    model, optimizer = made(TopK(density=0.1, layers=Layers(min_numel=64), local_steps=EVERY))
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, number=0)
    state.sync()
    given = [step(model, optimizer, number) for number in range(EVERY - 1)]
    state.on_hosts_updated(1.0, HostUpdateResult.added)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    state.sync()
    assert_same_on_all_ranks(model.parameters())
    owed = {name: hvd.size() * sum(one[name] for one in given) for name in given[0]}
    summed = totals({**owed, **{f"kept of {n}": one for n, one in residuals(optimizer).items()}})
    for name, param in model.named_parameters():
        kept = summed.get(f"kept of {name}", 0.0)
        assert torch.equal(summed[name] - kept, -hvd.size() * param.detach().double().flatten())
    assert optimizer.exchange.local_steps == EVERY


@several
def test_a_meeting_averages_the_statistics_of_a_model_where_it_is_asked_to():
    model, optimizer = made(SPARSE)
    step(model, optimizer, 0)
    norm = torch.nn.BatchNorm1d(5)
    norm(torch.full((4, 5), float(hvd.rank())))
    own = hvd.allgather(norm.running_mean[None], name="own statistics")
    optimizer.exchange.meet(norm)
    torch.testing.assert_close(norm.running_mean, own.mean(dim=0))
    assert_same_on_all_ranks(norm.buffers())
    assert int(norm.num_batches_tracked) == 1
    assert_same_on_all_ranks(model.parameters())


@several
def test_statistics_of_other_models_are_refused_on_all_ranks():
    _, optimizer = made(SPARSE)
    with pytest.raises(ExchangeFailedError, match="buffers can be averaged only if"):
        optimizer.exchange.meet(torch.nn.BatchNorm1d(5 + hvd.rank()))
