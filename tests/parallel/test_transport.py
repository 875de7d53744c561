"""Ranks that are processes are connected by MPI or by TCP, all by the same one."""

from __future__ import annotations

import logging
import os

import horovod.torch as hvd
import numpy as np
import pytest

from hvd_sparse import _core
from hvd_sparse.compression import Layers
from hvd_sparse.errors import InvalidArgumentError, RanksDisagreeError
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.ranks import transport
from hvd_sparse.ranks.world import World
from hvd_sparse.torch import TopK
from tests import laws
from tests.parallel.torch_ranks import Toy, distribute, integer_gradients

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="a single rank is connected to nobody")

WITH_MPI = not transport.problem_with_mpi(hvd)


@pytest.fixture(scope="module")
def world():
    return World.from_horovod(hvd, hvd.global_process_set)


def own_transport():
    """Returns the default transport of this job's exchanges."""
    return os.environ.get(transport.VARIABLE) or ("mpi" if WITH_MPI else "tcp")


def test_an_exchange_takes_horovods_transport_or_what_is_asked_for(world):
    exchange = Exchange.between_ranks(world, name="a test's exchange")
    assert exchange.transport == own_transport()
    exchange.close()


def test_statistics_name_the_transport():
    model = Toy()
    optimizer = distribute(model, TopK(density=0.1, layers=Layers(min_numel=64)))
    model.backward(integer_gradients(model, 0))
    optimizer.step()
    assert optimizer.exchange.stats.last.transport == own_transport()


@pytest.mark.parametrize("means", ["mpi", "tcp"] if WITH_MPI else ["tcp"])
def test_an_exchange_knows_why_its_messages_cannot_lie_on_a_gpu(world, caplog, means):
    caplog.set_level(logging.DEBUG, "hvd_sparse")
    Exchange.between_ranks(world, name="an exchange", transport=means).close()
    (line,) = [text for text in caplog.messages if text.startswith("an exchange: messages in mem")]
    library = _core.mpi_library_version().split(",")[0]
    answers = {
        "tcp": ["the ranks are not connected by MPI, and nothing else takes memory of GPUs"],
        "mpi": [  # one of this library's answers
            "can be sent",
            f"{library} says that it is not CUDA-aware (MPIX_Query_cuda_support)",
            f"{library} does not say whether it is CUDA-aware (MPIX_Query_cuda_support)",
        ],
    }
    assert line.removeprefix("an exchange: messages in memory of a GPU: ") in answers[means]


@pytest.mark.parametrize("collective", ["gtopk", "shard_topk"])
def test_both_transports_come_to_the_same_bits(world, collective):
    totals = []
    for means in ("mpi", "tcp") if WITH_MPI else ("tcp",):
        exchange = Exchange.between_ranks(world, name=means, transport=means)
        assert exchange.transport == means
        me = laws.Rank(exchange, world.rank, [100_000], 0.1, "top_k", collective)
        steps = me.run(3)
        laws.check_laws(world.allgather_object(steps, list[laws.Step]))
        totals.append([step.total for step in steps])
        exchange.close()
    np.testing.assert_array_equal(totals[0], totals[-1])


def test_a_message_that_is_too_long_is_told_with_its_bucket_on_all_ranks(world):
    exchange = Exchange.between_ranks(world, name="a test's exchange")
    # With three ranks, the last one sends its block to rank 0, and then waits for an answer.
    density = 0.5 if world.rank == world.size - 1 else 0.01
    me = laws.Rank(exchange, world.rank, [3000], density, "top_k", "gtopk")
    most, me.ks = me.ks, [30]
    me.run(1)
    world.allgather_object("all have ended that step")
    me.ks = most
    told = "the ranks disagree: .*bucket 'top_k-gtopk'"
    with pytest.raises(RanksDisagreeError, match=told):
        me.run(1)
    world.allgather_object("all have met it")
    exchange.close()


def test_ranks_that_ask_for_different_transports_are_told(world):
    if not WITH_MPI:
        pytest.skip("there is TCP alone")
    with pytest.raises(InvalidArgumentError, match="all ranks must use one transport: rank 1 has"):
        Exchange.between_ranks(
            world, name="a test's exchange", transport="tcp" if world.rank == 1 else "mpi"
        )


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (transport.VARIABLE, "infiniband", "must be 'mpi' or 'tcp', got 'infiniband'"),
        ("HOROVOD_GLOO_IFACE", "none0", "must name a network interface .*, got 'none0'"),
    ],
)
def test_what_is_wrong_on_one_rank_raises_on_all(world, monkeypatch, variable, value, message):
    monkeypatch.setenv(transport.VARIABLE, "tcp")
    if world.rank == world.size - 1:
        monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidArgumentError, match=f"{variable} {message}"):
        Exchange.between_ranks(world, name="a test's exchange")
