"""Costs of collectives: closed forms, published figures, and invariants for any numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_sparse import _core
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning import costs
from hvd_sparse.planning.account import HEADER_BYTES, Setting
from hvd_sparse.planning.profile import Link, Machine, Network
from tests.profiles import IDLE, MACHINE, gigabits

LOCAL = Link(alpha=2e-6, beta=1e-10)
# Only bytes count: the only overhead of a message is its header.
BYTES = Network.assumed(8, 1.0, 0.0)


def of(collective, *, k=1000, numel=100_000, network=BYTES, machine=IDLE, **rest):
    return costs.cost(collective, k=k, numel=numel, network=network, machine=machine, **rest)


# The model of the table in "What a step costs": alpha in us, ns per 4-byte word, entries, density,
# P; milliseconds of allgather, gtopk and a dense ring.
PUBLISHED = [
    (436, 36, 25_600_000, 0.001, 32, (59, 11, 1813)),
    (50, 3.2, 25_600_000, 0.01, 32, (51, 8.4, 162)),
    (50, 3.2, 340_000_000, 0.01, 8, (152, 65, 1905)),
    (50, 3.2, 340_000_000, 0.01, 256, (5549, 174, 2193)),
]


@pytest.mark.parametrize(("alpha", "word", "numel", "density", "size", "expected"), PUBLISHED)
def test_times_without_merging_are_those_of_the_published_formulas(
    alpha, word, numel, density, size, expected
):
    network = Network.assumed(size, 4 / (word * 1e-9), alpha * 1e-6)
    names = ("allgather", "gtopk", "dense")
    k = int(numel * density)
    found = [1000 * of(name, k=k, numel=numel, network=network).seconds for name in names]
    assert found == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("size", [2, 4, 8, 64])
def test_bytes_are_those_of_the_closed_forms(size):
    network = Network.assumed(size, 1.0, 0.0)
    block = 8 * 1000 + HEADER_BYTES
    rounds = int(math.log2(size))
    assert of("allgather", network=network).bytes == (size - 1) * block
    assert of("gtopk", network=network).bytes == rounds * block
    assert of("dense", network=network).bytes == pytest.approx(2 * (size - 1) / size * 400_000)
    same = of("recursive_doubling", network=network, overlap=1.0)
    assert same.bytes == pytest.approx(rounds * block)


@pytest.mark.parametrize("size", [3, 5, 7, 9, 100])
def test_guests_add_two_messages_and_what_a_host_merges(size):
    core = 1 << (size.bit_length() - 1)
    alpha = Network.assumed(size, 1e30, 1.0)
    assert of("gtopk", network=alpha).seconds == pytest.approx(math.log2(core) + 2)
    few = of("recursive_doubling", k=10, network=alpha)
    assert few.seconds == pytest.approx(math.log2(core) + 2)
    assert of("allgather", network=alpha).seconds == math.ceil(math.log2(size))


def test_shard_topk_sends_as_much_whatever_the_number_of_ranks():
    sums = _core.shard_topk_sums
    for size in (8, 64, 512):
        network = Network.assumed(size, 1.0, 0.0)
        headers = 2 * (size - 1) * HEADER_BYTES
        entries = 8 * (1 + sums) * 1_000_000 * (size - 1) / size
        found = of("shard_topk", k=1_000_000, numel=10**8, network=network)
        assert found.bytes == pytest.approx(entries + headers)


def test_messages_that_go_out_at_once_take_a_gap_each():
    network = Network.assumed(16, 1e30, 1.0)
    rounds = 1 + 4
    assert of("shard_topk", network=network).seconds == pytest.approx(14 * 50e-6 + rounds)
    unknown = replace(network, gap=None)
    assert of("shard_topk", network=unknown).seconds == pytest.approx(14 + rounds)
    spaced = replace(network, gap=0.1)
    assert of("shard_topk", network=spaced).seconds == pytest.approx(1.4 + rounds)
    assert spaced.scaled(32).gap == 0.1


@pytest.mark.parametrize(("size", "long"), [(2, 0), (4, 1), (16, 3), (5, 2), (3, 1)])
def test_slack_lengthens_what_gtopk_sends_after_its_first_merge(size, long):
    network = Network.assumed(size, 1.0, 0.0)
    plain, slack = (
        of("gtopk", network=network, collective_options={"slack": s}).bytes for s in (1.0, 1.5)
    )
    assert slack - plain == pytest.approx(8 * 500 * long)


def test_a_union_that_may_become_dense_is_announced():
    alpha = Network.assumed(8, 1e30, 1.0)
    assert of("recursive_doubling", k=6250, numel=100_000, network=alpha).seconds == 3
    assert of("recursive_doubling", k=6251, numel=100_000, network=alpha).seconds == 6


def test_each_round_uses_the_link_of_its_distance():
    links = tuple((1 << bit, Link(alpha=10.0**bit, beta=0)) for bit in range(3))
    network = Network(size=8, links=links, dense=Link(alpha=0, beta=0))
    assert of("gtopk", network=network).seconds == 111
    assert of("allgather", network=network).seconds == 111


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize(("values", "width"), [("float32", 4), ("bfloat16", 2)])
def test_a_shard_sum_sends_the_bytes_of_a_ring(size, values, width):
    network, numel = Network.assumed(size, 1.0, 0.0), 10_000_000
    found = of("shard_sum", numel=numel, network=network, values=values)
    ring = 2 * (size - 1) / size * width * numel
    assert found.bytes == pytest.approx(ring, rel=1e-3)
    assert found.seconds == pytest.approx(ring, rel=1e-3)


def test_a_shard_sum_over_nodes_sends_a_share_between_them():
    local = Link(alpha=0.0, beta=1e-9)
    nodes = Network.assumed(8, 1.0, 0.0, local_size=4, local=local)
    found = of("shard_sum", numel=10_000_000, network=nodes)
    assert found.seconds == pytest.approx(2 * (1 / 2) * 4 * 10_000_000 / 4, rel=1e-3)


def test_a_shard_sum_on_a_fast_network_takes_its_passes_over_memory():
    machine = replace(IDLE, select_seconds_per_entry=1e-9)
    network = Network.assumed(4, 1e30, 0.0)
    found = of("shard_sum", numel=10_000_000, network=network, machine=machine)
    assert 0.03 <= found.seconds <= 0.06  # taking, adding, writing, and the last chunk again


def test_a_shard_sum_of_a_device_takes_there_and_adds_up_on_the_cpu_while_it_writes():
    network, numel = Network.assumed(4, 1e30, 0.0), 10_000_000

    def found(**machine):
        device = replace(IDLE, copy_seconds_per_entry=1e-12, write_seconds_per_entry=1e-15)
        return of("shard_sum", numel=numel, network=network, machine=replace(device, **machine))

    taken = found(take_seconds_per_entry=1e-9, select_seconds_per_entry=1.0)
    assert taken.taking == pytest.approx(1e-9 * numel)
    assert taken.seconds == pytest.approx(taken.taking, rel=1e-3)
    rates = {"pass_seconds_per_entry": 1e-9, "write_seconds_per_entry": 1.5e-9}
    added_up = found(**rates).seconds
    assert 0.02 <= added_up <= 0.03
    assert found(**rates | {"merge_seconds_per_entry": 1.0}).seconds == added_up
    assert found(**rates | {"write_seconds_per_entry": 4e-9}).seconds == pytest.approx(2 * added_up)


def test_a_shard_sum_of_devices_sends_all_between_nodes():
    nodes = Network.assumed(8, 1.0, 0.0, local_size=4, local=Link(alpha=0.0, beta=1e-9))
    device = replace(IDLE, copy_seconds_per_entry=1e-12, write_seconds_per_entry=1e-15)
    found = of("shard_sum", numel=10_000_000, network=nodes, machine=device)
    assert found.bytes == pytest.approx(2 * (7 / 8) * 4 * 10_000_000, rel=1e-3)


def test_a_shard_sum_that_was_never_timed_on_a_device_has_no_price():
    device = replace(IDLE, copy_seconds_per_entry=1e-9)
    slow_host = replace(BYTES, dense=Link(alpha=0.0, beta=1e9))
    one = {"k": 1, "numel": 10_000_000, "allowed": costs.DENSE_SUMS, "network": slow_host}
    assert not costs.possible("shard_sum", slow_host, device)
    assert costs.cheapest(machine=device, **one).collective == "dense"
    timed = replace(device, write_seconds_per_entry=1e-9)
    assert costs.cheapest(machine=timed, **one).collective == "shard_sum"
    with pytest.raises(InvalidArgumentError, match="write_seconds_per_entry was measured"):
        of("shard_sum", machine=device)


def test_the_cheapest_dense_sum_and_its_values():
    slow_host = replace(BYTES, dense=Link(alpha=0.0, beta=10.0))
    one = {"k": 1, "numel": 10_000_000, "machine": IDLE, "allowed": costs.DENSE_SUMS}
    assert costs.cheapest(network=BYTES, **one).collective == "dense"
    assert costs.cheapest(network=slow_host, **one).values == "float32"
    found = costs.cheapest(network=slow_host, values=("float32", "bfloat16"), **one)
    assert (found.collective, found.wire, found.values) == ("shard_sum", "plain", "bfloat16")


def test_a_union_of_independent_ranks_fills_in_as_expected():
    random = np.random.default_rng(0)
    numel, k, ranks = 10_000, 1000, 8
    unions = [
        np.unique(np.concatenate([random.choice(numel, k, replace=False) for _ in range(ranks)]))
        for _ in range(20)
    ]
    setting = Setting(network=BYTES, machine=IDLE)
    expected = float(setting.union(np.array(float(k)), np.array(float(numel)), ranks))
    assert np.mean([union.size for union in unions]) == pytest.approx(expected, rel=0.005)


def test_a_union_travels_dense_past_half_the_entries():
    full = of("recursive_doubling", k=60_000, numel=100_000)
    assert full.bytes == pytest.approx(3 * (400_000 + HEADER_BYTES))


def test_what_is_not_delivered_is_settled_like_a_merge():
    machine = replace(IDLE, merge_seconds_per_entry=1.0)
    network = Network.assumed(8, 1e30, 0.0)
    found = of("gtopk", k=1000, network=network, machine=machine).seconds
    assert found == pytest.approx(1000 * (3 * 2 + 2))


@pytest.mark.parametrize("collective", costs.SPARSE)
def test_handing_over_is_paid_once_and_by_no_dense_exchange(collective):
    network = Network.assumed(8, 1e9, 1e-5, local_size=2, local=LOCAL)
    slow = replace(MACHINE, exchange_overhead=MACHINE.exchange_overhead + 0.5)
    before, after = (of(collective, network=network, machine=m).seconds for m in (MACHINE, slow))
    assert after - before == pytest.approx(0.5)
    dense = [of("dense", network=network, machine=m).seconds for m in (MACHINE, slow)]
    assert dense[0] == dense[1]


@pytest.mark.parametrize(
    ("collective", "entries"),
    [("allgather", 1000 + 8000), ("gtopk", 3000), ("recursive_doubling", 9000),
     ("shard_topk", 1000 + 12_000), ("dense", 0)],
)  # fmt: skip
def test_blocks_of_a_device_cross_the_bus_down_and_up(collective, entries):
    device = replace(IDLE, copy_seconds_per_entry=2e-9)
    network = Network.assumed(8, 1.0, 0.0)
    numel = 1 << 40  # so that no two ranks select the same entry
    ours, without = (
        of(collective, numel=numel, network=network, machine=one).seconds for one in (device, IDLE)
    )
    assert ours - without == pytest.approx(1e-9 * entries, rel=1e-3)


def test_arrays_are_added_up_where_blocks_lie():
    def dense_sum(**machine):
        return of("recursive_doubling", k=90_000, machine=replace(IDLE, **machine)).seconds

    of_cpu = dense_sum(select_seconds_per_entry=1e-3) - dense_sum()
    assert of_cpu == pytest.approx(3 * 1e-3 * 100_000)
    device = {"copy_seconds_per_entry": 1e-9, "merge_seconds_per_entry": 1e-3}
    slow = dense_sum(select_seconds_per_entry=1.0, **device)
    assert slow == dense_sum(**device)
    assert slow - dense_sum(copy_seconds_per_entry=1e-9) == pytest.approx(of_cpu)
    timed = dense_sum(**device | {"pass_seconds_per_entry": 2e-3, "merge_seconds_per_entry": 0})
    assert timed - dense_sum(copy_seconds_per_entry=1e-9) == pytest.approx(2 * of_cpu)


def test_allgather_merges_every_block_of_any_number_of_ranks():
    machine = Machine(
        select_seconds_per_entry=0,
        select_overhead=0,
        merge_seconds_per_entry=1.0,
        code_seconds_per_entry=0,
    )
    for size in range(1, 20):
        blocks, merged = [1] * size, 0  # sizes in k of disjoint blocks, one per rank
        while len(blocks) > 1:
            pairs = [blocks[i : i + 2] for i in range(0, len(blocks), 2)]
            merged += sum(sum(pair) for pair in pairs if len(pair) == 2)
            blocks = [sum(pair) for pair in pairs]
        network = Network.assumed(size, 1e30, 0.0)
        found = of("allgather", k=10, numel=10**12, network=network, machine=machine)
        assert found.seconds == pytest.approx(10 * merged, rel=0.15)
        if size & (size - 1) == 0:
            assert found.seconds == pytest.approx(10 * merged)


def test_packing_pays_where_bytes_cost_more_than_coding():
    slow, fast = gigabits(1, 8), gigabits(1000, 8, latency=1e-6)
    one = {"k": 25_600, "numel": 25_600_000, "machine": MACHINE, "allowed": ("gtopk",)}
    assert costs.cheapest(network=slow, **one).wire == "packed"
    assert costs.cheapest(network=fast, **one).wire == "plain"
    packed = of("gtopk", k=1000, numel=1_000_000, wire="packed")
    bits = 32 + math.log2(1000) + 2
    assert packed.bytes == pytest.approx(3 * (1000 * bits / 8 + HEADER_BYTES))


@pytest.mark.parametrize("wire", costs.WIRES)
def test_narrow_values_save_half_of_the_value_and_cost_coding(wire):
    one = {"k": 25_600, "numel": 25_600_000, "network": gigabits(1, 8), "wire": wire}
    wide = costs.cost("gtopk", machine=MACHINE, **one)
    narrow = costs.cost("gtopk", machine=MACHINE, values="bfloat16", **one)
    assert wide.bytes - narrow.bytes == 3 * 2 * 25_600
    coded = costs.cost("gtopk", machine=IDLE, values="bfloat16", **one)
    assert narrow.seconds > coded.seconds


@pytest.mark.parametrize(("values", "bytes_"), [("int8", 1 + 1 / 64), ("int4", 1 / 2 + 1 / 64)])
def test_integers_take_their_bits_and_a_share_of_a_scale(values, bytes_):
    one = {"k": 25_600, "numel": 25_600_000, "network": gigabits(1, 8), "machine": MACHINE}
    wide, narrow = (costs.cost("gtopk", values=name, **one) for name in ("float32", values))
    assert wide.bytes - narrow.bytes == pytest.approx(3 * (4 - bytes_) * 25_600)


def test_sums_of_nodes_move_dense_shards_inside_a_node_and_a_part_of_k_between():
    network = Network.assumed(8, 1.0, 0.0, local_size=4, local=Link(alpha=0, beta=0.5))
    found = of("gtopk", k=1000, numel=100_000, network=network, nodes_first=True)
    between = 8 * 250 + HEADER_BYTES
    within = 3 * (HEADER_BYTES + 4 * 25_000) + 3 * (HEADER_BYTES + 8 * 250)
    assert found.bytes == between + within
    assert found.seconds == pytest.approx(between + 0.5 * within)


def test_sums_of_nodes_start_their_messages_and_add_up_and_select_after_backward():
    network = Network.assumed(24, 1e30, 0.0, local_size=6, local=Link(alpha=1.0, beta=0.0))
    machine = replace(IDLE, select_seconds_per_entry=1.0)
    shards, gather = 5, 3
    found = of("gtopk", network=network, nodes_first=True)
    assert found.seconds == pytest.approx(shards + gather)
    found = of("gtopk", numel=100_000, network=network, machine=machine, nodes_first=True)
    assert found.seconds == pytest.approx(shards + gather + 100_000)


@pytest.mark.parametrize(("distance", "counts"), [(1, False), (2, True), (4, True)])
def test_between_nodes_the_links_of_their_distance_count(distance, counts):
    link, slow = Link(alpha=1e-5, beta=1e-9), Link(alpha=1e-2, beta=1e-9)
    links = {1: link, 2: link, 4: link}
    network = Network(
        size=8, local_size=2, links=tuple(links.items()), dense=link, local=Link(alpha=0, beta=0)
    )
    slower = replace(network, links=tuple({**links, distance: slow}.items()))
    seconds = [of("gtopk", network=one, nodes_first=True).seconds for one in (network, slower)]
    assert (seconds[1] > seconds[0] + 5e-3) == counts


@pytest.mark.parametrize(
    "network", [BYTES, gigabits(1, 8, local_size=3, local=LOCAL), gigabits(1, 8, local_size=4)]
)
def test_sums_of_nodes_need_even_nodes_and_their_link(network):
    assert not costs.possible("gtopk", network, nodes_first=True)
    with pytest.raises(InvalidArgumentError, match="nodes_first"):
        of("gtopk", network=network, nodes_first=True)
    with pytest.raises(InvalidArgumentError, match="none of"):
        costs.cheapest(
            k=1, numel=9, network=network, machine=IDLE, allowed=("gtopk",), nodes=(True,)
        )  # fmt: skip


@pytest.mark.parametrize("collective", costs.SPARSE)
def test_one_rank_pays_for_writing_its_gradient_only(collective):
    network = Network.assumed(1, 1e9, 1e-3)
    if not costs.possible(collective, network):
        return
    found = of(collective, network=network, machine=MACHINE)
    assert found == costs.Cost(seconds=MACHINE.scatter_seconds_per_entry * 100_000, bytes=0)


NETWORKS = st.builds(
    lambda size, rate, latency: gigabits(rate, size, latency=latency),
    st.integers(1, 5000),
    st.sampled_from([0.1, 1, 10, 100]),
    st.sampled_from([0.0, 5e-6, 5e-4]),
)


@settings(max_examples=60)
@given(NETWORKS, st.integers(1, 10**8), st.floats(0, 1), st.floats(0, 1))
def test_the_cheapest_is_the_least_of_all_and_grows_with_k(network, numel, density, overlap):
    k = int(density * numel)
    every = {
        (name, wire): costs.cost(
            name, k=k, numel=numel, network=network, machine=MACHINE, wire=wire, overlap=overlap
        ).seconds
        for name in costs.NAMES
        for wire in costs.WIRES
        if costs.possible(name, network)
    }
    best = costs.cheapest(k=k, numel=numel, network=network, machine=MACHINE, overlap=overlap)
    assert best.seconds == min(every.values()) == every[best.collective, best.wire]
    assert all(math.isfinite(one) and one >= 0 for one in every.values())
    for name in ("allgather", "gtopk", "shard_topk"):
        more = costs.cost(name, k=numel, numel=numel, network=network, machine=MACHINE)
        assert more.seconds >= every[name, "plain"] * (1 - 1e-12)


def test_ties_go_to_the_first_name():
    alone = Network.assumed(2, 1e9, 1e-3)
    one = {"k": 10, "numel": 1000, "network": alone, "machine": IDLE}
    assert costs.cheapest(allowed=("gtopk", "allgather"), **one).collective == "allgather"
    assert costs.cheapest(allowed=("gtopk",), **one).collective == "gtopk"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"collective": "ring"}, "collective must be one of .* got 'ring'"),
        ({"k": 11}, r"k must lie in \[0, numel = 10\], got 11"),
        ({"wire": "zip"}, "wire must be one of"),
        ({"collective_options": {"slack": 0.5}}, "slack must be at least 1, got 0.5"),
        ({"overlap": 1.5}, r"overlap must lie in \[0, 1\], got 1.5"),
    ],
)
def test_what_lies_outside_its_limits_is_refused(change, message):
    arguments = {"collective": "gtopk", "k": 1, "numel": 10, **change}
    with pytest.raises(InvalidArgumentError, match=message):
        of(arguments.pop("collective"), **arguments)
