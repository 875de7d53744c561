"""The cost models: each collective, round by round, as docs/algorithms.md states it.

Written over arrays of k and numel, so that a plan can price thousands of buckets at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning.network import Link, Network, distances_below
from hvd_sparse.planning.profile import Machine
from hvd_sparse.planning.routes import CALLS, FLOAT32_BYTES, ROUNDS, route_of

Array: TypeAlias = NDArray[np.float64]

HEADER_BYTES = 32
VALUE_BYTES = FLOAT32_BYTES
INDEX_BYTES = 4
WIRES = ("plain", "packed")
# Blocks of a device have room for a multiple of so many entries.
DEVICE_UNIT = 64
# For split_allgather: bytes of a digest's word, the fraction that digests let through beyond k, and
# steps between updates of the regions.
DIGEST_BYTES = 4
DIGEST_SURPLUS = 1 / 16
STEPS_BETWEEN_REGIONS = 64


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Parameters of a cost beside k and numel.

    Attributes:
        network: The network between the ranks.
        machine: The machine of each rank.
        wire: How entries are sent: "plain", an int32 index and a float32 value, or "packed", the
            index in about log2(numel / k) + 2 bits.
        overlap: How alike the ranks choose, in [0, 1]. 0: independently at random, so that a union
            fills in fastest; 1: all the same indices.
        slack: gtopk keeps slack * k entries in its middle rounds; at least 1.
        value_bytes: Bytes of a value on the wire: 4, or 2 for a narrow type.
        device_steps: True if a device can do all of a step; see routes.route_of.
    """

    network: Network
    machine: Machine
    wire: str = "plain"
    overlap: float = 0.0
    slack: float = 1.0
    value_bytes: int = VALUE_BYTES
    device_steps: bool = True

    def __post_init__(self) -> None:
        if self.wire not in WIRES:
            raise InvalidArgumentError(f"wire must be one of {list(WIRES)}, got {self.wire!r}")
        if not 0 <= self.overlap <= 1:
            raise InvalidArgumentError(f"overlap must lie in [0, 1], got {self.overlap}")
        if not 1 <= self.slack < math.inf:
            raise InvalidArgumentError(f"slack must be at least 1, got {self.slack}")

    def route(self, collective: str) -> str:
        """Returns the route of a bucket that this collective exchanges: one of routes.ROUTES."""
        return route_of(
            collective,
            connected=self.network.devices is not None,
            value_bytes=self.value_bytes,
            device_steps=self.device_steps,
        )

    def kept(self, k: Array, numel: Array) -> Array:
        """Returns the number of entries that gtopk keeps in its middle rounds."""
        kept: Array = np.minimum(np.ceil(self.slack * k), numel)
        return kept

    def entry_bytes(self, k: Array, numel: Array) -> Array:
        """Returns the bytes of k entries out of `numel`, without the header."""
        if self.wire == "plain":
            return (INDEX_BYTES + self.value_bytes) * k
        bits: Array = np.log2(np.maximum(numel, 1) / np.maximum(k, 1)) + 2
        return k * (self.value_bytes + bits / 8)

    def code(self, entries: Array) -> Array:
        """Returns the seconds to code and decode entries; a plain block is sent as it lies."""
        coded = self.wire == "packed" or self.value_bytes != VALUE_BYTES
        return entries * (self.machine.code_seconds_per_entry if coded else 0.0)

    def merge(self, entries: Array) -> Array:
        """Returns the seconds to merge two blocks that have so many entries together."""
        return entries * self.machine.merge_seconds_per_entry

    def cross(self, entries: Array) -> Array:
        """Returns the seconds to copy entries from the device to the CPU, or back."""
        return entries * (self.machine.copy_seconds_per_entry / 2)

    def pass_over(self, numel: Array) -> Array:
        """Returns the seconds to add two dense arrays where blocks lie, which is always the CPU."""
        machine = self.machine
        per_entry = (  # with a device, only the rate of merging is the CPU's
            machine.merge_seconds_per_entry
            if machine.beside_cpu
            else machine.select_seconds_per_entry
        )
        return numel * per_entry

    def union(self, k: Array, numel: Array, ranks: int) -> Array:
        """Returns the expected number of entries in the union of `ranks` blocks of k."""
        missed = np.power(1 - k / np.maximum(numel, 1), ranks)
        union: Array = self.overlap * k + (1 - self.overlap) * numel * (1 - missed)
        return union


class Account:
    """Adds up the time and the bytes of the busiest rank, round by round, for one collective."""

    def __init__(self, k: Array, numel: Array, setting: Setting) -> None:
        self.k, self.numel, self.setting = k, numel, setting
        machine = setting.machine
        self.seconds = machine.exchange_overhead + machine.scatter_seconds_per_entry * numel
        self.bytes = np.zeros_like(numel)

    def fetch(self) -> None:
        """Adds the copy of the own block from where the gradients lie to the CPU."""
        self.work(self.setting.cross(self.k))

    def send(self, nbytes: Array | float, link: Link, messages: Array | float = 1) -> None:
        """Adds messages that the busiest rank sends, of so many bytes in total."""
        self.seconds = self.seconds + link.alpha * messages + link.beta * nbytes
        self.bytes = self.bytes + nbytes

    def wait_for(self, nbytes: Array, link: Link, messages: Array | float = 1) -> None:
        """Adds messages that the busiest rank receives while it has nothing to send."""
        self.seconds = self.seconds + link.alpha * messages + link.beta * nbytes

    def compare(self) -> None:
        """Adds the allgather of headers between CPUs, before devices wait for each other."""
        network = self.setting.network
        for distance in distances_below(network.size):
            blocks = min(distance, network.size - distance)
            self.send(float(blocks * HEADER_BYTES), network.at(distance))

    def settle(self) -> None:
        """Adds the return of undelivered entries: a walk through the own block and the sum."""
        if self.setting.network.size > 1:
            self.work(self.setting.merge(2 * self.k) + self.setting.cross(self.k))

    def work(self, seconds: Array | float) -> None:
        """Adds seconds of computing that nothing hides."""
        self.seconds = self.seconds + seconds


def _allgather(a: Account) -> None:
    """Bruck's rounds, then all P blocks summed pair by pair."""
    size, setting = a.setting.network.size, a.setting
    a.fetch()
    block = HEADER_BYTES + setting.entry_bytes(a.k, a.numel)
    distance = 1
    while distance < size:
        a.send(min(distance, size - distance) * block, setting.network.at(distance))
        pairs, last = divmod(size - distance, 2 * distance)
        right = pairs * distance + min(last, distance)  # ranks in the right halves of all pairs
        whole = pairs + (last > 0)
        a.work(setting.merge((whole + right / distance) * setting.union(a.k, a.numel, distance)))
        distance *= 2
    if size > 1:
        a.work(setting.code(a.k * size / 2))  # packs one block, unpacks P - 1
    a.work(setting.cross(setting.union(a.k, a.numel, size)))


def _core(size: int) -> int:
    """Returns the largest power of two that is at most `size`."""
    return 1 << (size.bit_length() - 1)


def _gtopk(a: Account) -> None:
    """Rounds of swap and merge, k entries each; a round for guests before and after."""
    size, setting = a.setting.network.size, a.setting
    if setting.route("gtopk") != CALLS:
        _gtopk_between_devices(a)
        return
    a.fetch()
    core = _core(size)

    def block(entries: Array) -> Array:
        return HEADER_BYTES + setting.entry_bytes(entries, a.numel)

    running = a.k
    kept = setting.kept(a.k, a.numel)
    if size > core:
        a.wait_for(block(running), setting.network.at(core))
        a.work(setting.code(running) + setting.merge(2 * running))
        running = kept
    distance = 1
    while distance < core:
        a.send(block(running), setting.network.at(distance))
        a.work(setting.code(running) + setting.merge(2 * running))
        running = kept
        distance *= 2
    if size > core:
        a.send(block(a.k), setting.network.at(core))
        a.work(setting.code(a.k))
    a.settle()
    a.work(setting.cross(a.k))


def device_message(entries: Array) -> Array:
    """Returns the bytes of a block between devices, which is sent plain and in full length."""
    room = DEVICE_UNIT * np.ceil(np.maximum(entries, 1) / DEVICE_UNIT)
    message: Array = HEADER_BYTES + (INDEX_BYTES + VALUE_BYTES) * room
    return message


def _gtopk_between_devices(a: Account) -> None:
    """The rounds of gtopk over the links of devices, in plain messages of one length.

    A device that does all of the step also settles and writes: as many launches as a merge takes,
    so they count as one more merge.
    """
    size, setting = a.setting.network.size, a.setting
    devices = setting.network.devices
    assert devices is not None
    core = _core(size)
    message = device_message(setting.kept(a.k, a.numel))
    merge = devices.merge.alpha + devices.merge.beta * message
    by_way_of_the_cpu = setting.route("gtopk") == ROUNDS
    a.compare()
    if by_way_of_the_cpu:
        a.fetch()
        a.work(devices.handing.alpha + devices.handing.beta * message)
    if size > core:
        a.wait_for(message, devices.at(core))
        a.work(merge)
    for distance in distances_below(core):
        a.send(message, devices.at(distance))
        a.work(merge)
    if size > core:
        a.send(message, devices.at(core))
    if by_way_of_the_cpu:
        a.settle()
        a.work(setting.cross(a.k))
    else:
        a.work(merge)


def _recursive_doubling(a: Account) -> None:
    """Like gtopk without cutting: blocks grow, and are sent dense past density 1/2."""
    size, setting = a.setting.network.size, a.setting
    a.fetch()
    core = _core(size)

    def block(ranks: int) -> Array:
        union = setting.union(a.k, a.numel, ranks)
        sparse = setting.entry_bytes(union, a.numel)
        return HEADER_BYTES + np.where(2 * union > a.numel, VALUE_BYTES * a.numel, sparse)

    # A short message announces the form of each sum where it may become dense.
    messages = np.where(2 * size * a.k > a.numel, 2.0, 1.0)

    def take_in(ranks: int) -> None:
        union = setting.union(a.k, a.numel, ranks)
        one_pass = setting.pass_over(a.numel)
        sparse = setting.code(union) + setting.merge(2 * union)
        a.work(np.where(2 * union > a.numel, one_pass, sparse))

    ranks = 1
    if size > core:
        a.wait_for(block(1), setting.network.at(core), messages)
        take_in(1)
        ranks = 2  # the busiest hosts send for two ranks from here on
    distance = 1
    while distance < core:
        a.send(block(ranks), setting.network.at(distance), messages)
        take_in(ranks)
        distance *= 2
        ranks = min(2 * ranks, size)
    if size > core:
        a.send(block(size), setting.network.at(core), messages)
    a.work(setting.cross(setting.union(a.k, a.numel, size)))


def _split_allgather(a: Account) -> None:
    """All entries to the owners of their regions at once, then digests and sums to all ranks."""
    size, setting = a.setting.network.size, a.setting
    a.fetch()
    if size == 1:
        a.work(setting.cross(a.k))
        return
    link, gap = setting.network.link, setting.network.gap
    others = size - 1
    part = setting.entry_bytes(a.k / size, a.numel / size)
    a.send(others * (HEADER_BYTES + part), link)
    a.work((link.alpha if gap is None else gap) * (others - 1))
    rounds = (size - 1).bit_length()
    digest = DIGEST_BYTES * (16 + 6 * math.log(size))
    a.send(others * digest, link, rounds * (1 + 1 / STEPS_BETWEEN_REGIONS))
    kept = 1 + DIGEST_SURPLUS
    a.send(others * (HEADER_BYTES + kept * part), link, rounds)
    a.work(setting.code((1 + kept) * a.k * others / size) + setting.merge((rounds + kept) * a.k))
    a.settle()
    a.work(setting.cross(a.k))


def _hierarchical(a: Account) -> None:
    """Dense reduce-scatter in a node, gtopk of shards between nodes, then allgather in the node.

    The exchange's thread adds up and selects, each in one pass over its part of the bucket.
    Gradients lie on the CPU.
    """
    network, setting = a.setting.network, a.setting
    local_size, local = network.local_size, network.local
    assert local is not None
    others = local_size - 1
    shard = VALUE_BYTES * a.numel / local_size
    block = (INDEX_BYTES + VALUE_BYTES) * a.k / local_size
    within = others * (2 * HEADER_BYTES + shard + block)
    messages = others + others.bit_length()
    a.seconds = a.seconds + messages * local.alpha + local.beta * within
    a.work(setting.machine.select_seconds_per_entry * a.numel)
    between = Network(
        size=network.nodes,
        links=tuple(
            (1 << bit, network.at(local_size << bit))
            for bit in range((network.nodes - 1).bit_length())
        ),
        dense=network.dense,
    )
    machine = replace(a.setting.machine, scatter_seconds_per_entry=0.0, exchange_overhead=0.0)
    setting = replace(setting, network=between, machine=machine)
    owner = Account(a.k / local_size, a.numel / local_size, setting)
    _gtopk(owner)
    a.seconds = a.seconds + owner.seconds
    a.bytes = a.bytes + owner.bytes + within


def _dense(a: Account) -> None:
    """Horovod's allreduce, as measured; it writes the gradient itself."""
    network = a.setting.network
    nbytes = VALUE_BYTES * a.numel
    a.seconds = network.dense.alpha + network.dense.beta * nbytes
    a.bytes = 2 * (network.size - 1) / network.size * nbytes


MODELS: dict[str, Callable[[Account], None]] = {
    "allgather": _allgather,
    "gtopk": _gtopk,
    "recursive_doubling": _recursive_doubling,
    "split_allgather": _split_allgather,
    "hierarchical": _hierarchical,
    "dense": _dense,
}
