"""Swaps between thread ranks: counted, ordered, refused and ended like any exchange."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hvd_sparse import _core
from hvd_sparse.errors import ExchangeFailedError, InvalidArgumentError
from hvd_sparse.exchange.exchange import Exchange
from tests import laws


def on_ranks(size, program):
    """Runs `program(exchange, rank)` on `size` threads; returns the results by rank."""
    world = _core.LoopbackWorld(size, 20.0)

    def one(rank):
        exchange = Exchange.over_loopback(world, rank)
        try:
            return program(exchange, rank)
        finally:
            exchange.close()

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(one, range(size)))


@pytest.mark.parametrize("size", [0, 1, 1000, 3_000_000])
def test_every_swap_is_timed_at_every_distance(size):
    def program(exchange, rank):
        return [exchange.swap(rank ^ distance, size, 5) for distance in (1, 2, 3)]

    for rank in on_ranks(4, program):
        assert [len(seconds) for seconds in rank] == [5, 5, 5]
        assert all(second > 0 for seconds in rank for second in seconds)


def test_a_swap_takes_as_long_as_the_later_rank_lets_it_wait():
    def program(exchange, rank):
        exchange.swap(1 - rank, 10, 1)
        if rank == 1:
            time.sleep(0.5)
        return exchange.swap(1 - rank, 10, 2)

    prompt, late = on_ranks(2, program)
    assert prompt[0] > 0.3
    assert late[0] < 0.3
    assert prompt[1] < 0.3


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_messages_to_all_others_at_once_are_timed(ranks):
    def program(exchange, rank):
        assert exchange.spread_peers == ranks - 1
        return exchange.spread(1000, 5)

    for seconds in on_ranks(ranks, program):
        assert len(seconds) == 5
        assert min(seconds) > 0


@pytest.mark.parametrize("ranks", [1, 2, 3, 40])
def test_all_ranks_get_the_numbers_of_all_bit_for_bit(ranks):
    def program(exchange, rank):
        return exchange.gather([rank, -0.0, float("nan"), 1e-320], what="a meeting")

    for rows in on_ranks(ranks, program):
        assert [row[0] for row in rows] == list(range(ranks))
        rest = [np.array(row[1:]).view(np.int64).tolist() for row in rows]
        assert rest == [np.array([-0.0, np.nan, 1e-320]).view(np.int64).tolist()] * ranks


def test_ranks_that_gather_different_numbers_of_numbers_are_told():
    def program(exchange, rank):
        with pytest.raises(ExchangeFailedError, match=r"rank [01] .* 16 bytes .*a meeting"):
            exchange.gather([0.0] * (1 + rank), what="a meeting")

    on_ranks(2, program)


def test_a_message_to_all_waits_for_the_last_rank():
    def program(exchange, rank):
        exchange.spread(10, 1)
        if rank == 2:
            time.sleep(0.5)
        return exchange.spread(10, 1)

    first, second, late = on_ranks(3, program)
    assert first[0] > 0.3
    assert second[0] > 0.3
    assert late[0] < 0.3


def test_ranks_that_spread_different_lengths_are_told_and_the_exchange_ends():
    def program(exchange, rank):
        with pytest.raises(ExchangeFailedError, match=r"the ranks disagree|expected at most 10"):
            exchange.spread(10 * (1 + rank // 2), 1)
        with pytest.raises(ExchangeFailedError):
            exchange.check()

    on_ranks(3, program)


def test_swaps_and_steps_may_alternate():
    def program(exchange, rank):
        me = laws.Rank(exchange, rank, [300], 0.1, "top_k", "gtopk")
        steps = []
        for size in (100, 10, 100_000):
            steps += me.run(1)
            assert len(exchange.swap(rank ^ 1, size, 2)) == 2
        return steps

    laws.check_laws(on_ranks(4, program))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 10, 1), r"peer must be another rank in \[0, 2\), got 1 on rank 1"),
        ((2, 10, 1), r"peer must be another rank in \[0, 2\), got 2"),
        ((-1, 10, 1), r"peer must be another rank in \[0, 2\), got -1"),
        ((0, -1, 1), "bytes must not be negative, got -1"),
        ((0, 10, -1), "repetitions must not be negative, got -1"),
    ],
)
def test_arguments_out_of_range_are_refused_before_anything_is_sent(arguments, message):
    def program(exchange, rank):
        if rank == 1:
            with pytest.raises(InvalidArgumentError, match=message):
                exchange.swap(*arguments)
            if min(arguments) < 0 <= arguments[0]:  # spread takes these, too
                with pytest.raises(InvalidArgumentError, match=message):
                    exchange.spread(*arguments[1:])
        return exchange.swap(1 - rank, 10, 3)

    assert [len(seconds) for seconds in on_ranks(2, program)] == [3, 3]


def test_a_swap_beside_a_bucket_in_flight_is_refused():
    refused = threading.Event()

    def program(exchange, rank):
        me = laws.Rank(exchange, rank, [300], 0.1, "top_k", "gtopk")
        if rank == 0:
            me.start(laws.integer_gradient(300, rank=0, step=0))  # waits for rank 1
            with pytest.raises(InvalidArgumentError, match="until no bucket is in flight"):
                exchange.swap(1, 10, 1)
            with pytest.raises(InvalidArgumentError, match="until no bucket is in flight"):
                exchange.spread(10, 1)
            refused.set()
        else:
            assert refused.wait(20)
            me.start(laws.integer_gradient(300, rank=1, step=0))
        return [me.finish()]

    laws.check_laws(on_ranks(2, program))


def test_ranks_that_swap_different_lengths_are_told_and_the_exchange_ends():
    def program(exchange, rank):
        with pytest.raises(ExchangeFailedError, match=r"the ranks disagree|expected at most 10"):
            exchange.swap(1 - rank, 10 * (1 + rank), 1)
        with pytest.raises(ExchangeFailedError):
            exchange.check()
        with pytest.raises(ExchangeFailedError):
            exchange.swap(1 - rank, 10, 1)

    on_ranks(2, program)


def test_devices_that_are_not_to_be_connected_are_not_and_swap_nothing(monkeypatch):
    monkeypatch.setenv("HVD_SPARSE_NCCL", "0")

    def program(exchange, rank):
        with exchange.acknowledging() as core:
            assert core.connect_devices("cuda:0") is False
            for refused in (
                lambda: core.swap_between_devices(1 - rank, 10, 1),
                lambda: core.merge_on_device(10, 1),
                lambda: core.copy_to_device(10, 1),
            ):
                with pytest.raises(InvalidArgumentError, match="no network connects the devices"):
                    refused()
            with pytest.raises(InvalidArgumentError, match=r"device must be cuda:0 .*, got cpu"):
                core.connect_devices("cpu")
        return exchange.swap(1 - rank, 10, 3)

    assert [len(seconds) for seconds in on_ranks(2, program)] == [3, 3]
