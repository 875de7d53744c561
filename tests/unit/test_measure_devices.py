"""Measured links between devices: equal on all ranks, or none at all."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hvd_sparse import _core
from hvd_sparse.errors import PeerLostError, UnavailableError
from hvd_sparse.places.place import OnCpu
from hvd_sparse.planning.network import GpuLinks, Link
from hvd_sparse.ranks.world import World
from hvd_sparse.tuning.measure_devices import measure_devices
from hvd_sparse.tuning.measurer import Measurer
from tests.profiles import gigabits

MERGE = Link(alpha=2e-5, beta=3e-11)
HANDING = Link(alpha=6e-5, beta=1e-9)


def link_at(distance, beta=1e-10):
    return Link(alpha=1e-5 * distance, beta=beta * distance)


@pytest.fixture(autouse=True)
def build_with_cuda(monkeypatch):
    monkeypatch.setattr(_core, "with_cuda", True)


class Devices:
    """The device operations of a rank, which take known times.

    Args:
        rank: This rank's rank.
        connected: True if the ranks' devices are connected.
        slower: Factor on all times.
        beta: Seconds per byte of the link at distance 1.
        fails: Exception raised instead of merging.
    """

    def __init__(self, rank, *, connected=True, slower=1.0, beta=1e-10, fails=None):
        self._rank, self._connected, self._slower = rank, connected, slower
        self._beta, self._fails = beta, fails
        self.asked, self.swapped = [], []

    def acknowledging(self):
        return contextlib.nullcontext(self)

    def connect_devices(self, device):
        self.asked.append(device)
        return self._connected

    def swap_between_devices(self, peer, nbytes, repetitions):
        self.swapped.append((peer, nbytes))
        seconds = self._slower * link_at(self._rank ^ peer, self._beta).seconds(nbytes)
        return [seconds] * (repetitions - 1) + [1000 * seconds]  # one repetition was disturbed

    def merge_on_device(self, entries, repetitions):
        if self._fails:
            raise self._fails
        return [self._slower * MERGE.seconds(32 + 8 * entries)] * (repetitions - 1) + [5.0]

    def copy_to_device(self, entries, repetitions):
        return [self._slower * HANDING.seconds(32 + 8 * entries)] * (repetitions - 1) + [0.0]


class Together:
    """Worlds for threads that gather from each other."""

    def __init__(self, size):
        self._barrier = threading.Barrier(size)
        self._things = [None] * size

    def world(self, rank):
        return World(
            rank,
            len(self._things),
            allgather=lambda array, _: np.concatenate(self._gather(rank, array)),
        )

    def _gather(self, rank, thing):
        self._things[rank] = thing
        self._barrier.wait(30)
        everything = list(self._things)
        self._barrier.wait(30)
        return everything


def on_ranks(devices, program=None, places=None):
    """Returns each rank's result of `measure_devices`, or its exception."""
    together = Together(len(devices))
    places = places or ["cuda:0"] * len(devices)
    program = program or measure_devices

    def one(rank):
        try:
            return program(devices[rank], together.world(rank), places[rank])
        except (UnavailableError, PeerLostError) as error:
            return error

    with ThreadPoolExecutor(len(devices)) as threads:
        return list(threads.map(one, range(len(devices))))


def near(link):
    return pytest.approx([link.alpha, link.beta], rel=1e-6)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 16])
def test_links_and_lines_are_found_alike_on_all_ranks(size):
    found = on_ranks([Devices(rank) for rank in range(size)])
    assert all(one == found[0] for one in found)
    distances = [1 << bit for bit in range((size - 1).bit_length())]
    assert [distance for distance, _ in found[0].links] == distances
    for distance, link in found[0].links:
        assert [link.alpha, link.beta] == near(link_at(distance))
    assert [found[0].merge.alpha, found[0].merge.beta] == near(MERGE)
    assert [found[0].handing.alpha, found[0].handing.beta] == near(HANDING)


def test_the_slowest_rank_counts_on_all():
    found = on_ranks([Devices(rank, slower=3.0 if rank == 2 else 1.0) for rank in range(4)])
    assert all(one == found[0] for one in found)
    assert found[0].merge.alpha == pytest.approx(3 * MERGE.alpha, rel=1e-6)
    assert found[0].handing.beta == pytest.approx(3 * HANDING.beta, rel=1e-6)
    assert found[0].at(2).alpha == pytest.approx(3 * link_at(2).alpha, rel=1e-6)


@pytest.mark.parametrize(("beta", "longest"), [(1e-10, 4 << 20), (1e-8, 512 << 10)])
def test_a_slow_link_is_asked_for_shorter_messages_on_all_ranks(beta, longest):
    devices = [Devices(rank, beta=beta if rank == 0 else 1e-10) for rank in range(4)]
    on_ranks(devices)
    for one in devices:
        by_peer = {peer: [nbytes for to, nbytes in one.swapped if to == peer] for peer, _ in
                   one.swapped}  # fmt: skip
        assert len(by_peer) == 2
        assert all(max(lengths) == longest for lengths in by_peer.values())


def test_a_time_that_something_came_between_does_not_count():
    # Each of the swaps, merges and handings above has one repetition with a meaningless time.
    found = on_ranks([Devices(rank) for rank in range(2)])[0]
    assert found.at(1).seconds(1000) == pytest.approx(link_at(1).seconds(1000))


@pytest.mark.parametrize("place", [["cpu"] * 3, ["cuda:0", "cpu", "cuda:1"]])
def test_gradients_on_a_cpu_connect_no_device(place):
    devices = [Devices(rank) for rank in range(3)]
    assert on_ranks(devices, places=place) == [None] * 3
    assert all(one.asked == [] for one in devices)


def test_a_build_without_cuda_connects_no_device(monkeypatch):
    monkeypatch.setattr(_core, "with_cuda", False)
    devices = [Devices(rank) for rank in range(2)]
    assert on_ranks(devices) == [None] * 2
    assert all(one.asked == [] for one in devices)


def test_devices_that_nothing_connects_are_not_measured():
    devices = [Devices(rank, connected=False) for rank in range(3)]
    assert on_ranks(devices) == [None] * 3
    assert all(one.asked == ["cuda:0"] and one.swapped == [] for one in devices)


def test_a_rank_whose_device_cannot_be_measured_is_named_on_all():
    devices = [Devices(rank, fails=MemoryError("none left") if rank == 1 else None)
               for rank in range(3)]  # fmt: skip
    for error in on_ranks(devices):
        assert isinstance(error, UnavailableError)
        assert "rank 1 cannot measure what its own work takes: MemoryError: none left" in str(error)


def test_a_measurer_measures_devices_where_gradients_lie_on_them(monkeypatch):
    monkeypatch.setattr("hvd_sparse.tuning.measurer.measure_network", lambda *_: gigabits(1, 2))

    def measured(exchange, world, device):
        place = OnCpu()
        place.device = device
        return Measurer(world, exchange, allreduce=lambda *_: 1.0, place=place).network()

    for device in ("cuda:0", "cpu"):
        for network in on_ranks([Devices(0), Devices(1)], measured, [device] * 2):
            assert network.link == gigabits(1, 2).link
            assert isinstance(network.devices, GpuLinks) == (device != "cpu")
