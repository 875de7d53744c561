"""The inputs of a plan: fitted lines, and times of this machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse import _core
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.errors import UnavailableError
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.place import OnCpu
from hvd_sparse.planning.network import Link
from hvd_sparse.ranks.world import World
from hvd_sparse.tuning import measure
from hvd_sparse.tuning.measure import fit_gap, fit_link, measure_machine, measure_network
from tests.device_time import LateEvent
from tests.late_device import LateDevice
from tests.profiles import MACHINE

SIZES = (1 << 10, 32 << 10, 512 << 10)


@given(st.floats(1e-7, 1e-1), st.floats(1e-11, 1e-6))
def test_a_straight_line_is_found(alpha, beta):
    link = fit_link({size: alpha + beta * size for size in SIZES})
    for size in SIZES:
        assert link.seconds(size) == pytest.approx(alpha + beta * size, rel=1e-6)


def test_short_messages_count_as_much_as_long_ones():
    noisy = {1 << 10: 1.1e-4, 32 << 10: 4.2e-4, 512 << 10: 5.4e-3}
    link = fit_link(noisy)
    for size, seconds in noisy.items():
        assert link.seconds(size) == pytest.approx(seconds, rel=0.15)


def test_a_burst_that_short_messages_pass_in_is_no_faster_link():
    burst, beta = 4 << 10, 80e-9
    link = fit_link({size: max(2e-5, (size - burst) * beta) for size in SIZES})
    assert link.alpha == 0
    assert link.beta == pytest.approx(beta, rel=0.02)


@pytest.mark.parametrize("seconds", [(3e-4, 2e-4, 1e-4), (1e-6, 1e-3, 1e-2), (0.1, 0.1, 0.1)])
def test_a_line_is_never_negative(seconds):
    link = fit_link(dict(zip(SIZES, seconds, strict=True)))
    assert link.alpha >= 0
    assert link.beta >= 0
    assert link.alpha + link.beta > 0


@pytest.mark.parametrize("sparsifier", ["gaussian", "top_k"])
def test_every_time_of_a_machine_is_a_time(sparsifier):
    machine = measure_machine(as_sparsifier(sparsifier))
    assert 1e-12 < machine.select_seconds_per_entry < 1e-6
    assert 0 < machine.select_overhead < 1e-2
    assert 1e-11 < machine.merge_seconds_per_entry < 1e-6
    assert 1e-12 < machine.code_seconds_per_entry < 1e-6
    assert 1e-12 < machine.scatter_seconds_per_entry < 1e-6
    assert 0 < machine.exchange_overhead < 1e-2
    assert machine.copy_seconds_per_entry == 0  # there is no bus


def test_waiting_for_a_devices_clock_is_not_in_what_is_measured(monkeypatch):
    monkeypatch.setattr(LateEvent, "DELAY", 0.03)
    exchange = Exchange.over_loopback(_core.LoopbackWorld(1), 0)
    machine = measure_machine(as_sparsifier("gaussian"), LateDevice(exchange))
    assert 1e-12 < machine.select_seconds_per_entry < 1e-6
    assert 1e-12 < machine.scatter_seconds_per_entry < 1e-6
    assert 0 < machine.exchange_overhead < LateEvent.DELAY / 2


class _Bus(OnCpu):
    has_bus = True


@pytest.mark.parametrize("has_bus", [False, True])
def test_times_of_buckets_are_told_apart(monkeypatch, has_bus):
    class Bucket:
        def __init__(self, sparsifier, numel, k, place, *, collective="gtopk"):
            self._numel, self._k, self._place = numel, k, place
            self._is_dense = collective == "shard_sum"

        def seconds(self):
            if self._is_dense:
                numel = self._numel
                return measure._Seconds(numel * 7e-10, numel * 5e-10, 5e-5 + numel * 1e-10)
            if has_bus and not isinstance(self._place, _Bus):
                return measure._Seconds(self._numel * 9e-10, 0.0, 0.0)
            crossing = self._k * 4e-9 if has_bus else 0.0
            written_later = self._numel * 3e-10 if has_bus else 0.0
            select, scatter = 1e-5 + self._numel * 1e-9 + crossing, self._numel * 2e-10 + crossing
            return measure._Seconds(select, scatter, 5e-5 + written_later)

    monkeypatch.setattr(measure, "_Bucket", Bucket)
    machine = measure_machine(as_sparsifier("gaussian"), _Bus() if has_bus else None)
    on_device = {True: 1.0, False: 0.0}[has_bus]
    assert machine.copy_seconds_per_entry == pytest.approx(8e-9 * on_device)
    assert machine.exchange_overhead == pytest.approx(5e-5, rel=0.01)
    assert machine.select_overhead == pytest.approx(1e-5, rel=0.2)
    assert machine.select_seconds_per_entry == pytest.approx(1e-9, rel=0.02)
    assert machine.take_seconds_per_entry == pytest.approx(7e-10 * on_device)
    assert machine.pass_seconds_per_entry == pytest.approx(9e-10 * on_device)
    assert machine.write_seconds_per_entry == pytest.approx(6e-10 * on_device, rel=0.01)
    written = 2e-10 + on_device * (3e-10 + 4e-9 / 1000)
    assert machine.scatter_seconds_per_entry == pytest.approx(written, rel=0.01)


def test_dense_sums_are_not_timed_where_they_have_no_memory(monkeypatch):
    monkeypatch.setattr(_Bus, "free_bytes", lambda _: 0.0)
    machine = measure_machine(as_sparsifier("gaussian"), _Bus())
    assert machine.on_device
    assert machine.pass_seconds_per_entry > 0
    assert not machine.knows_dense_sums


@pytest.mark.parametrize(
    ("size", "distances"), [(2, [1]), (3, [1, 2]), (4, [1, 2]), (5, [1, 2, 4])]
)
def test_every_distance_of_a_network_is_measured_alike_on_all_ranks(size, distances):
    loopback = _core.LoopbackWorld(size)
    with ThreadPoolExecutor(size) as threads:
        together = _Together(size)

        def one(rank):
            exchange = Exchange.over_loopback(loopback, rank)
            world = World(
                rank, size, allgather=lambda array, _: np.concatenate(together(rank, array))
            )
            return measure_network(exchange, world, _allreduce_seconds)

        networks = list(threads.map(one, range(size)))
    assert all(network == networks[0] for network in networks)
    assert [distance for distance, _ in networks[0].links] == distances
    assert networks[0].dense.alpha == pytest.approx(1e-4)
    assert networks[0].dense.beta == pytest.approx(1e-9)
    assert networks[0].dense16.alpha == pytest.approx(3e-4)
    assert networks[0].dense16.beta == pytest.approx(3e-9)
    assert networks[0].local is None
    assert (networks[0].gap is None) == (size == 2)  # two ranks have no other rank to send to


@pytest.mark.parametrize(("size", "local"), [(6, 3), (8, 4), (9, 3), (10, 5)])
def test_the_link_inside_a_node_is_no_slower_for_an_odd_number_of_ranks_there(size, local):
    inside, between = Link(alpha=1e-6, beta=1e-10), Link(alpha=1e-4, beta=1e-8)
    together = _Together(size)

    def one(rank):
        def swap(partner, nbytes, repetitions):
            link = inside if rank // local == partner // local else between
            return [link.seconds(nbytes)] * repetitions

        exchange = SimpleNamespace(swap=swap, spread_peers=1, local_size=local)
        world = World(rank, size, allgather=lambda array, _: np.concatenate(together(rank, array)))
        return measure_network(exchange, world, _allreduce_seconds)

    with ThreadPoolExecutor(size) as threads:
        for network in threads.map(one, range(size)):
            assert network.local.alpha == pytest.approx(inside.alpha)
            assert network.local.beta == pytest.approx(inside.beta)


def test_the_link_inside_a_node_is_that_of_its_nearest_ranks(monkeypatch):
    def swap(exchange, partner, nbytes, repetitions):  # on rank 0: the farther, the slower
        return [partner * (1e-4 + 1e-9 * nbytes)] * repetitions

    monkeypatch.setattr(Exchange, "swap", swap)
    monkeypatch.setattr(Exchange, "spread", lambda *_: [1e-3])
    exchange = Exchange.over_loopback(_core.LoopbackWorld(8), 0, local_size=4)
    world = World(0, 8)
    object.__setattr__(world, "allgather_object", lambda thing, kind: [thing])
    network = measure_network(exchange, world, lambda nbytes, values: 1e-3)
    assert network.local_size == 4
    assert network.local == network.at(1)
    assert network.at(4).alpha == pytest.approx(4 * network.local.alpha)


@pytest.mark.parametrize(("latency", "found"), [(0.001, 0.001), (0.02, 0.04)])
def test_ranks_out_of_step_find_the_latency_and_after_pauses_the_round_trip(
    monkeypatch, latency, found
):
    pauses = []
    monkeypatch.setattr(measure.time, "sleep", pauses.append)

    def swap(exchange, partner, nbytes, repetitions):
        seconds = latency + 1e-7 * nbytes
        return [0.0 if i % 2 and repetitions > 1 else 2 * seconds for i in range(repetitions)]

    monkeypatch.setattr(Exchange, "swap", swap)
    exchange = Exchange.over_loopback(_core.LoopbackWorld(2), 1)
    world = World(1, 2)
    object.__setattr__(world, "allgather_object", lambda thing, kind: [thing])
    link = measure_network(exchange, world, lambda nbytes, values: 1e-3).link
    assert link.alpha == pytest.approx(found)
    assert link.beta == pytest.approx(1e-7 * found / latency)
    assert pauses.count(0.4) == (9 if latency > 0.0025 else 0)


def test_a_partner_that_comes_late_makes_no_network_slow(monkeypatch):
    def swap(exchange, partner, nbytes, repetitions):
        return [1.0] + [1e-4 + 1e-9 * nbytes] * (repetitions - 1)

    pauses = []
    monkeypatch.setattr(measure.time, "sleep", pauses.append)
    monkeypatch.setattr(Exchange, "swap", swap)
    exchange = Exchange.over_loopback(_core.LoopbackWorld(2), 0)
    world = World(0, 2)
    object.__setattr__(world, "allgather_object", lambda thing, kind: [thing])
    link = measure_network(exchange, world, lambda nbytes, values: 1e-3).link
    assert link.alpha == pytest.approx(1e-4)
    assert 0.4 not in pauses


def test_a_gap_is_what_a_message_adds_beside_others_without_its_bytes():
    assert fit_gap(5e-5, 5e-5 + 14 * 9e-6, 15, on_the_wire=8e-6) == pytest.approx(1e-6)
    assert fit_gap(5e-5, 4e-5, 15, on_the_wire=0.0) == 0  # the first swap waited for others


def test_the_gap_is_measured_with_as_many_messages_as_a_collective_sends_at_once(monkeypatch):
    def spread(exchange, nbytes, repetitions):
        return [
            1e-4 + 3e-6 * (exchange.spread_peers - 1) + 1e-3 * (i == 0) for i in range(repetitions)
        ]

    monkeypatch.setattr(Exchange, "swap", lambda *args: [1e-4] * args[-1])
    monkeypatch.setattr(Exchange, "spread", spread)
    size = 40
    exchange = Exchange.over_loopback(_core.LoopbackWorld(size), 0)
    world = World(0, size)
    object.__setattr__(world, "allgather_object", lambda thing, kind: [thing])
    assert exchange.spread_peers == 32
    assert measure_network(exchange, world, lambda nbytes, values: 1e-3).gap == pytest.approx(3e-6)


def test_allreduces_begin_at_different_times_of_horovods_cycle(monkeypatch):
    pauses = []
    monkeypatch.setattr("hvd_sparse.tuning.measure.time.sleep", pauses.append)
    exchange = Exchange.over_loopback(_core.LoopbackWorld(1), 0)
    measure_network(exchange, World(0, 1), lambda nbytes, values: 1e-3)
    # By message size, of float32 and of float16.
    rows = [pauses[:7], pauses[7:12], pauses[12:15], pauses[15:18], pauses[18:]]
    for row in rows:
        assert len(set(row)) == len(row) >= 3
        assert 0 <= min(row) < max(row) < 1e-3


@pytest.mark.parametrize("poor", [None, 0, 1])
def test_a_rank_that_cannot_measure_is_named_on_all(poor):
    together = _Together(2)

    def one(rank):
        world = World(rank, 2)
        object.__setattr__(world, "allgather_object", lambda thing, kind: together(rank, thing))

        def measured():
            if rank == poor:
                raise MemoryError("no memory left")
            return replace(MACHINE, merge_seconds_per_entry=1.0 + rank)

        return measure.slowest_machine(world, measured)

    with ThreadPoolExecutor(2) as threads:
        results = [threads.submit(one, rank) for rank in range(2)]
        for result in results:
            if poor is None:
                assert result.result() == replace(MACHINE, merge_seconds_per_entry=2.0)
                continue
            with pytest.raises(UnavailableError, match=f"rank {poor} cannot .*: no memory left"):
                result.result()


def _allreduce_seconds(nbytes, values):
    return {"float32": 1, "float16": 3}[values] * (1e-4 + 1e-9 * nbytes)


class _Together:
    """An allgather between threads."""

    def __init__(self, size):
        import threading

        self._barrier = threading.Barrier(size)
        self._things = [None] * size

    def __call__(self, rank, thing):
        self._things[rank] = thing
        self._barrier.wait(30)
        everything = list(self._things)
        self._barrier.wait(30)
        return everything
