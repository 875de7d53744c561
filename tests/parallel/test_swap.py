"""Swaps between ranks that are processes."""

from __future__ import annotations

import horovod.torch as hvd
import pytest

from hvd_sparse.errors import ExchangeTimeoutError, RanksDisagreeError
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.ranks import lifecycle
from hvd_sparse.ranks.world import World
from tests import laws


@pytest.fixture(scope="module")
def world():
    return World.from_horovod(hvd, hvd.global_process_set)


def partner_of(world, distance):
    """Returns the rank at that distance in the hypercube; None if there is none."""
    partner = world.rank ^ distance
    return partner if partner < world.size else None


@pytest.mark.parametrize("piece", [1000, 1 << 30])
@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
def test_every_swap_is_timed_and_steps_go_on_after_it(world, piece, size):
    exchange = Exchange.between_ranks(world, name="swaps", max_message_bytes=piece)
    me = laws.Rank(exchange, world.rank, [300], 0.1, "top_k", "gtopk")
    for distance in (1, 2):
        partner = partner_of(world, distance)
        if partner is not None:
            seconds = exchange.swap(partner, size, 4)
            assert len(seconds) == 4
            assert min(seconds) > 0
    if world.size > 1:
        assert min(exchange.spread(size, 4)) > 0
    laws.check_laws(world.allgather_object(me.run(2), list[laws.Step]))
    exchange.close()


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("piece", [4, 1 << 30])
def test_ranks_that_swap_different_lengths_are_told_and_the_exchange_ends_on_all(world, piece):
    exchange = Exchange.between_ranks(world, name="disagreement", max_message_bytes=piece)
    told = r"the ranks disagree: .*rank [01]\b.* swap"
    if world.rank < 2:
        with pytest.raises(RanksDisagreeError, match=told):
            exchange.swap(1 - world.rank, 10 * (1 + world.rank), 1)
    world.allgather_object("two ranks have disagreed")
    with pytest.raises(RanksDisagreeError, match=told):
        while True:
            exchange.check()  # the others learn of it within moments
    exchange.close()


@pytest.mark.usefixtures("several_ranks")
def test_a_rank_that_does_not_come_is_given_up_and_named(world, monkeypatch):
    monkeypatch.setenv("HVD_SPARSE_TIMEOUT_SECONDS", "0.5")
    monkeypatch.setattr(lifecycle, "note_peer_lost", lambda: None)  # the peer is alive
    exchange = Exchange.between_ranks(world, name="patience")
    limit = r"0\.5 s \(HVD_SPARSE_TIMEOUT_SECONDS\)"
    told = f"rank 0 gave up waiting for rank 1 after {limit} in a swap of 10"
    if world.rank == 0:
        with pytest.raises(ExchangeTimeoutError, match=told):
            exchange.swap(1, 10, 1)
    with pytest.raises(ExchangeTimeoutError, match=told):
        while True:
            exchange.check()
    exchange.close()
