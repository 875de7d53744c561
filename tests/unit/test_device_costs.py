"""Exchanges between devices: their routes, and their costs over the devices' links."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from hvd_sparse import _core
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning import costs
from hvd_sparse.planning.account import HEADER_BYTES, Setting
from hvd_sparse.planning.models.gtopk import device_message
from hvd_sparse.planning.network import GpuLinks, Link, Network
from hvd_sparse.planning.routes import CALLS, ROUNDS, ROUTES
from tests.profiles import IDLE, MACHINE, between_devices, gigabits

ROUNDS_OF = ("allgather", "gtopk", "shard_topk")
ON_DEVICE = replace(
    MACHINE, copy_seconds_per_entry=3e-9, write_seconds_per_entry=5e-10, exchange_overhead=7e-5
)


@pytest.mark.parametrize(
    ("collective", "connected", "values", "wire", "route"),
    [
        ("gtopk", True, "float32", "plain", ROUNDS),
        ("allgather", True, "float32", "plain", ROUNDS),
        ("shard_topk", True, "float32", "plain", ROUNDS),
        ("gtopk", False, "float32", "plain", CALLS),
        ("gtopk", True, "bfloat16", "plain", CALLS),
        ("shard_topk", True, "float32", "packed", CALLS),
        ("recursive_doubling", True, "float32", "plain", CALLS),
        ("shard_sum", True, "float32", "plain", CALLS),
        ("dense", True, "float32", "plain", CALLS),
    ],
)
def test_the_route_is_that_of_the_core(collective, connected, values, wire, route):
    network = gigabits(1, 4)
    setting = Setting(
        network=between_devices(network, 100) if connected else network,
        machine=ON_DEVICE, values=values, wire=wire,
    )  # fmt: skip
    assert setting.route(collective) == route
    assert route in ROUTES
    assert replace(setting, by_devices=False).route(collective) == CALLS


@pytest.mark.parametrize(
    ("entries", "nbytes"),
    [(0, 544), (1, 544), (64, 544), (65, 1056), (128, 1056), (1000, 32 + 8 * 1024)],
)
def test_a_message_has_room_for_a_multiple_of_64_entries(entries, nbytes):
    assert device_message(np.array(float(entries))) == nbytes


def uneven(size: int) -> Network:
    """Returns a network with a different link at every distance, for CPUs and for devices."""
    distances = [1 << bit for bit in range(max(0, size - 1).bit_length())]
    return Network(
        size=size,
        links=tuple((d, Link(alpha=1e-3 * d, beta=1e-6 * d)) for d in distances),
        dense=Link(alpha=0.0, beta=0.0),
        devices=GpuLinks(
            links=tuple((d, Link(alpha=1e-4 * d, beta=1e-8 * d)) for d in distances),
            merge=Link(alpha=3e-5, beta=2e-9),
            handing=Link(alpha=5e-5, beta=4e-9),
        ),
    )


def simulated(size: int, k: int, numel: int, slack: float) -> tuple[float, float]:
    """Simulates all messages; returns the last rank's seconds and the busiest rank's bytes."""
    network = uneven(size)
    devices = network.devices
    kept = min(math.ceil(slack * k), numel)
    message = 32 + 8 * 64 * math.ceil(kept / 64)
    clock, sent = [0.0] * size, [0] * size

    distance = 1  # Bruck's algorithm sends every header to all
    while distance < size:
        nbytes = 32 * min(distance, size - distance)
        clock = [now + network.at(distance).seconds(nbytes) for now in clock]
        sent = [one + nbytes for one in sent]
        distance *= 2
    down, up = 1e-9 * 1.5 * k, devices.handing.seconds(message)
    clock = [now + down + up for now in clock]

    def swap(a, b, *, both):
        end = max(clock[a], clock[b]) + devices.at(abs(a - b)).seconds(message)
        clock[a] = clock[b] = end
        sent[a] += message
        sent[b] += message if both else 0

    def merge(rank):
        clock[rank] += devices.merge.seconds(message)

    core = 1 << (size.bit_length() - 1)
    for guest in range(core, size):
        swap(guest, guest - core, both=False)
        merge(guest - core)
    for bit in range(core.bit_length() - 1):
        for rank in range(core):
            if rank < rank ^ (1 << bit):
                swap(rank, rank ^ (1 << bit), both=True)
                merge(rank)
                merge(rank ^ (1 << bit))
    for guest in range(core, size):
        swap(guest - core, guest, both=False)
    for rank in range(size):
        clock[rank] += 2 * k * ON_DEVICE.merge_seconds_per_entry + 1e-9 * 1.5 * 2 * k
    rest = ON_DEVICE.exchange_overhead + numel * ON_DEVICE.scatter_seconds_per_entry
    return max(clock) + rest, max(sent)


@pytest.mark.parametrize("slack", [1.0, 1.7])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8, 13])
def test_gtopk_takes_what_its_messages_and_merges_take_one_by_one(size, slack):
    for k, numel in ((1, 1), (64, 1000), (65, 70), (5000, 10**6)):
        found = costs.cost(
            "gtopk", k=k, numel=numel, network=uneven(size), machine=ON_DEVICE,
            collective_options={"slack": slack},
        )  # fmt: skip
        seconds, nbytes = simulated(size, k, numel, slack)
        assert found.seconds == pytest.approx(seconds, rel=1e-9)
        assert found.bytes == nbytes


def test_packed_entries_go_by_the_cpus():
    one = {"k": 3000, "numel": 10**6, "machine": ON_DEVICE, "wire": "packed"}
    for collective in ROUNDS_OF:
        connected, not_connected = (
            costs.cost(collective, network=network, **one)
            for network in (uneven(4), replace(uneven(4), devices=None))
        )
        assert connected == not_connected


def test_a_bucket_goes_by_the_cpus_where_that_is_faster():
    fast, slow = (between_devices(gigabits(10, 8), rate) for rate in (100, 0.01))
    for network, route in ((fast, ROUNDS), (slow, CALLS)):
        for collective in ROUNDS_OF:
            table = costs.cheapest_of(
                [30_000.0], 10**7, allowed=(collective,), network=network, machine=ON_DEVICE,
                wires=("plain",),
            )  # fmt: skip
            _, form = table.options[table.chosen[0]]
            assert form.route(collective) == route


@pytest.mark.parametrize("collective", costs.NAMES)
@pytest.mark.parametrize("values", ["float32", "bfloat16"])
def test_all_else_goes_by_the_links_of_the_cpus(collective, values):
    local = Link(alpha=2e-6, beta=1e-10)
    network = gigabits(1, 8, local_size=2, local=local)
    one = {"k": 1000, "numel": 100_000, "machine": ON_DEVICE, "values": values}
    without = costs.cost(collective, network=network, **one)
    connected = costs.cost(collective, network=between_devices(network, 100), **one)
    assert (connected == without) == (collective not in ROUNDS_OF or values == "bfloat16")


def test_blocks_are_handed_over_as_well():
    networks = [
        between_devices(gigabits(1, 4), 100, handing=Link(alpha=alpha, beta=0.0))
        for alpha in (0.0, 1.0)
    ]
    one = {"k": 1000, "numel": 10**6, "machine": IDLE}
    for collective, times in (("gtopk", 1.0), ("allgather", 1.0), ("shard_topk", 2.0)):
        near, far = (costs.cost(collective, network=network, **one).seconds for network in networks)
        assert far - near == pytest.approx(times)


def test_before_devices_wait_for_each_other_the_cpus_compare():
    network = between_devices(Network.assumed(4, 1.0, 0.5), 1e9, latency=0.0)
    one = {"k": 10, "numel": 100, "network": network, "machine": IDLE}
    header = 3 * HEADER_BYTES
    for collective, seconds in (
        ("gtopk", 2 * 0.5 + header),
        ("allgather", 2 * 0.5 + header + 3 * 4),
        ("shard_topk", 2 * (2 * 0.5 + header) + 3 * (4 * 4 + 4)),
    ):
        assert costs.cost(collective, **one).seconds == pytest.approx(seconds)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_the_bytes_of_exact_messages_are_those_of_their_entries(size):
    one = {"k": 1000, "numel": 10**6, "network": uneven(size), "machine": IDLE}
    header = (size - 1) * HEADER_BYTES
    allgather = header + 4 * (size - 1) + 8 * 1000 * (size - 1)
    assert costs.cost("allgather", **one).bytes == pytest.approx(allgather)
    counts = 4 * (size - 1) * (size + 1)
    sent = 8 * (1 + _core.shard_topk_sums) * 1000 * (size - 1) / size
    assert costs.cost("shard_topk", **one).bytes == pytest.approx(2 * header + counts + sent)


def test_more_ranks_have_the_worst_link_between_devices():
    network = uneven(4)
    more = network.scaled(16)
    assert more.devices.merge == network.devices.merge
    assert more.devices.handing == network.devices.handing
    assert [distance for distance, _ in more.devices.links] == [1, 2, 4, 8]
    assert {link for _, link in more.devices.links} == {network.devices.link}
    assert network.devices.link == network.devices.at(2) == network.devices.at(64)


def test_distances_between_devices_must_ascend():
    link = Link(alpha=0.0, beta=0.0)
    with pytest.raises(InvalidArgumentError, match=r"a GpuLinks's links must ascend .*2, 1\]"):
        GpuLinks(links=((2, link), (1, link)), merge=link, handing=link)
