"""Moving an optimizer's exchange to another world, without a world: the refusals."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hvd_sparse.compression import LAGS
from hvd_sparse.errors import HvdSparseError, UnavailableError
from hvd_sparse.pytorch import renewal as module
from hvd_sparse.pytorch.learning_rates import LearningRates
from hvd_sparse.pytorch.local_steps import LocalSteps
from hvd_sparse.pytorch.renewal import Renewal, Successor
from hvd_sparse.pytorch.slots import Slot
from hvd_sparse.torch import host as horovod_host
from hvd_sparse.torch.host import HorovodHost


class ProcessSet:
    """A stand-in for Horovod's process set of two ranks."""

    def __init__(self, size: int | None, *, included: bool = True) -> None:
        self.ranks = [0, 1]
        self._size, self._included = size, included

    def size(self) -> int:
        if self._size is None:
            raise ValueError("Process set does not exist or has not been registered.")
        return self._size

    def rank(self) -> int:
        return 0

    def included(self) -> bool:
        return self._included


@pytest.fixture
def built(monkeypatch):
    monkeypatch.setattr(horovod_host.hvd, "is_initialized", lambda: True)
    return []


def renewal_of(param: torch.Tensor, built: list[int]) -> Renewal:
    return Renewal(lambda: built.append(1), [param], HorovodHost(ProcessSet(2)))


def test_the_first_gradient_has_it_built_once(built):
    param = torch.nn.Parameter(torch.ones(3))
    renewal = renewal_of(param, built)
    renewal.defer()
    assert renewal.pending
    param.sum().backward()
    param.sum().backward()
    assert built == [1]
    assert not renewal.pending


def test_after_a_shutdown_it_is_built_anew(built):
    param = torch.nn.Parameter(torch.ones(3))
    renewal = renewal_of(param, built)
    renewal.renew()
    renewal.close()
    assert renewal.pending
    param.sum().backward()
    assert built == [1, 1]


def exchange_of(param: torch.Tensor) -> LocalSteps:
    """Returns a single rank's exchange, reduced to the parts that are given up and inherited."""
    optimizer = torch.optim.SGD([param], lr=0.5)
    loaded = []

    def load(residuals, states, velocities, *, step):
        loaded.append((residuals, states, velocities, step))

    adopted = []

    def adopt_local_state(saved, source):
        adopted.append((saved, source))

    exchange = object.__new__(LocalSteps)
    vars(exchange).update(
        conditions={},
        optimizer=optimizer,  # the rates do not keep it alive
        world=SimpleNamespace(rank=0, size=1, allgather_object=lambda thing, kind: [thing]),
        layers=(),
        parameters={},
        momentum=SimpleNamespace(begin=lambda parameters, step: {}, give_back=list),
        steps=SimpleNamespace(count=0, velocities=dict, load=load, loaded=loaded),
        rates=LearningRates(optimizer, LAGS()),
        stats=None,
        close=lambda: None,
        load_local_state=lambda saved: None,
        adopt_local_state=adopt_local_state,
        adopted=adopted,
    )
    return exchange


def test_whoever_was_seen_to_clip_clips_in_the_next_world_too(built, monkeypatch):
    param = torch.nn.Parameter(torch.ones(3))
    monkeypatch.setattr(module.state, "save", lambda _: None)  # for ranks that hold nothing
    renewal = Renewal(lambda: exchange_of(param), [param], HorovodHost(ProcessSet(2)))
    for clips in (False, True):
        renewal.renew()
        assert renewal.exchange.rates.followed
        if clips:
            renewal.exchange.rates.clipping_seen()
        renewal.close()
    renewal.renew()
    assert not renewal.exchange.rates.followed


def test_residuals_that_were_shared_out_follow_the_rate_from_where_it_was():
    param = torch.nn.Parameter(torch.ones(3))
    exchange = exchange_of(param)
    successor = Successor(exchange, HorovodHost(ProcessSet(2)))
    successor.begin({}, steps=7, rates={"w": 1.0})
    successor.adopt({"local": {"amid": False}}, 1)
    assert exchange.adopted == [({"amid": False}, 1)]
    assert exchange.steps.loaded == [({}, {}, {}, 7)]
    assert exchange.rates.decays([Slot("w", param, 1)]) == [2.0]


def test_without_horovod_it_is_refused(built, monkeypatch):
    renewal = renewal_of(torch.nn.Parameter(torch.ones(3)), built)
    monkeypatch.setattr(horovod_host.hvd, "is_initialized", lambda: False)
    with pytest.raises(UnavailableError, match=r"call hvd.init\(\) first"):
        renewal.renew()


def test_one_that_was_retired_builds_nothing(built):
    param = torch.nn.Parameter(torch.ones(3))
    renewal = renewal_of(param, built)
    renewal.renew()
    renewal.retire("there is a newer one")
    renewal.close()
    param.sum().backward()
    assert built == [1]
    with pytest.raises(HvdSparseError, match="there is a newer one"):
        renewal.renew()


def test_it_dies_with_its_optimizer_though_parameters_live(built):
    param = torch.nn.Parameter(torch.ones(3))
    renewal_of(param, built).defer()
    param.sum().backward()
    assert built == []


@pytest.mark.parametrize("size", [None, 3])
def test_a_process_set_that_horovod_forgot_is_refused(size):
    with pytest.raises(UnavailableError, match="add others again"):
        HorovodHost(ProcessSet(size)).has_peers()


def test_a_rank_outside_a_process_set_has_no_peers():
    assert not HorovodHost(ProcessSet(2, included=False)).has_peers()
    assert HorovodHost(ProcessSet(2)).has_peers()
