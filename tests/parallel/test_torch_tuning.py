"""An adaptive compression: dense steps, a plan, sparse steps, a verdict; nothing is lost."""

from __future__ import annotations

import logging

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.pytorch import places
from hvd_sparse.torch import Exchange
from hvd_sparse.tuning.stages import Stage
from tests.device_time import LateEvent
from tests.framework_laws import laws_in
from tests.framework_laws import tuning as tuning_laws
from tests.late_device import LateDevice
from tests.parallel.torch_ranks import (
    ON_ANY_RANK,
    Toy,
    assert_same_on_all_ranks,
    distribute,
    integer_gradients,
    take_over_from_rank_0,
)
from tests.parallel.tuned_ranks import COMPRESSION, train
from tests.torch_model import residuals
from tests.verdict import CYCLE, DENSE_STEPS

globals().update(laws_in(tuning_laws))

several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="a single rank has nothing to tune")


@several_ranks
@pytest.mark.parametrize("stop", [1, DENSE_STEPS - 1, DENSE_STEPS, DENSE_STEPS + 3, CYCLE])
def test_a_checkpoint_of_any_stage_goes_on_in_a_new_job(verdict, stop):
    verdict(sparse=True)
    model, twin = Toy(), Toy()
    optimizer = distribute(model, COMPRESSION)
    list(train(model, optimizer, range(stop)))
    resumed = distribute(twin, COMPRESSION)
    twin.load_state_dict(model.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    for name, residual in residuals(optimizer).items():
        assert torch.equal(residual, residuals(resumed)[name])
    list(train(twin, resumed, range(stop, stop + CYCLE)))
    assert_same_on_all_ranks(twin.parameters())


@several_ranks
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("others", ["get it broadcast", "load it without residuals"])
def test_a_checkpoint_of_rank_0_alone_goes_on_on_all_ranks(verdict, sparse, others):
    verdict(sparse=sparse)
    model, twin = Toy(), Toy()
    optimizer = distribute(model, COMPRESSION)
    list(train(model, optimizer, range(CYCLE + 1)))
    state = hvd.broadcast_object(optimizer.state_dict(), 0, name="state")
    resumed = distribute(twin, COMPRESSION)
    twin.load_state_dict(model.state_dict())
    take_over_from_rank_0(resumed, state, others)
    assert resumed.exchange.tuning == optimizer.exchange.tuning
    owed = [bool(residual.any()) for residual in residuals(resumed).values()]
    assert any(owed) == (sparse and hvd.rank() == 0)
    for _ in train(twin, resumed, range(CYCLE + 1, CYCLE + 1 + DENSE_STEPS + 2)):
        assert len(resumed.exchange.stats.last.buckets) == int(sparse)
        assert_same_on_all_ranks(twin.parameters())


@several_ranks
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_all_ranks_begin_again_where_rank_0_had_not_settled(verdict, dtype):
    verdict(sparse=True)
    model = Toy(dtype=dtype)
    optimizer = distribute(model, COMPRESSION)
    list(train(model, optimizer, range(1)))
    early = optimizer.state_dict()
    list(train(model, optimizer, range(1, CYCLE + 1)))
    if hvd.rank() == 0:
        optimizer.load_state_dict(early)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    seen = []
    for _ in train(model, optimizer, range(CYCLE + 1, 2 * CYCLE + 1)):
        seen.append(len(optimizer.exchange.stats.last.buckets))
        assert_same_on_all_ranks(model.parameters())
    assert seen == [0] * DENSE_STEPS + [1] * DENSE_STEPS


@several_ranks
def test_thresholds_stay_where_all_ranks_have_loaded_their_own(verdict):
    verdict(sparse=True)
    model = Toy()
    optimizer = distribute(model, COMPRESSION)
    list(train(model, optimizer, range(CYCLE + 1)))
    before = optimizer.state_dict()["hvd_sparse"]["states"]
    assert any(part.any() for part in before.values())
    optimizer.load_state_dict(optimizer.state_dict())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    after = optimizer.state_dict()["hvd_sparse"]["states"]
    assert before.keys() == after.keys()
    assert all(torch.equal(part, after[name]) for name, part in before.items())


@several_ranks
def test_with_other_nodes_residuals_go_on_and_the_plan_does_not(verdict, caplog):
    verdict(sparse=True)
    model, twin = Toy(), Toy()
    optimizer = distribute(model, COMPRESSION)
    list(train(model, optimizer, range(CYCLE + 1)))
    state = optimizer.state_dict()
    state["hvd_sparse"]["conditions"]["ranks on a node"] = "64"
    resumed = distribute(twin, COMPRESSION)
    twin.load_state_dict(model.state_dict())
    with caplog.at_level(logging.INFO, logger="hvd_sparse"):
        resumed.load_state_dict(state)
    said = [one.message for one in caplog.records if "found anew" in one.message]
    assert len(said) == (1 if hvd.rank() == 0 else 0)
    assert all("ranks on a node was" in message for message in said)
    assert resumed.exchange.tuning.stage is Stage.DENSE
    for name, residual in residuals(optimizer).items():
        assert torch.equal(residual, residuals(resumed)[name])
    steps = train(twin, resumed, range(CYCLE + 1, 2 * CYCLE + 2))
    seen = [len(resumed.exchange.stats.last.buckets) for _ in steps]
    assert seen == [0] * DENSE_STEPS + [1] * DENSE_STEPS + [1]
    assert_same_on_all_ranks(twin.parameters())


@several_ranks
def test_gradients_of_a_device_are_tuned_by_its_own_time(verdict, monkeypatch):
    verdict(sparse=True)
    monkeypatch.setattr(places, "place_of", lambda _, exchange: LateDevice(exchange))
    asked, backward = [], Toy.backward

    def watched(model, gradients):
        before = len(asked)
        backward(model, gradients)
        assert len(asked) == before, "backward asked the device whether it has come to an event"

    query = LateEvent.query
    monkeypatch.setattr(LateEvent, "query", lambda event: asked.append(event) or query(event))
    monkeypatch.setattr(Toy, "backward", watched)
    model = Toy()
    optimizer = distribute(model, COMPRESSION)
    asked.clear()  # requests of measuring machine and network
    list(train(model, optimizer, range(CYCLE), dtype=torch.float32))
    found = optimizer.exchange.tuning
    assert found.stage is Stage.SETTLED
    assert found.select_on == "engine"
    assert found.dense_seconds > 0
    assert found.sparse_seconds > 0
    assert asked
    everybody = hvd.allgather_object(found, name="tuning")
    assert all(theirs == found for theirs in everybody)


@several_ranks
def test_replan_between_backward_and_step_is_refused(verdict):
    verdict(sparse=True)
    model = Toy()
    optimizer = distribute(model, COMPRESSION)
    with pytest.raises(ON_ANY_RANK, match="replan"):  # some ranks learn of it in backward
        model.backward(integer_gradients(model, 0))
        optimizer.exchange.replan()


def test_an_optimizer_without_sparse_gradients_has_no_tuning():
    optimizer = torch.optim.SGD(Toy().parameters(), lr=1.0)
    with pytest.raises(InvalidArgumentError, match="has no sparse compression"):
        _ = Exchange(optimizer).tuning
