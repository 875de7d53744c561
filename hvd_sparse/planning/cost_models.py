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
# Of split_allgather: bytes of a word of a digest, what digests let through beyond k, steps between
# looks for regions.
DIGEST_BYTES = 4
DIGEST_SURPLUS = 1 / 16
STEPS_BETWEEN_REGIONS = 64


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a cost depends on beside k and numel.

    Attributes:
        network: Between the ranks.
        machine: Each rank.
        wire: How entries are sent: "plain", an int32 index and a float32 value, or "packed", the
            index in about log2(numel / k) + 2 bits.
        overlap: How alike the ranks choose, in [0, 1]: 0, as if independently at random, so that a
            union fills in fastest; 1, all the same indices.
        slack: How many times k entries gtopk keeps in its middle rounds, at least 1.
        value_bytes: Of a value on the wire: 4, or 2 of a narrow type.
        device_steps: Whether a device can do all of a step; see routes.route_of.
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
        """The route of a bucket that this collective moves: one of routes.ROUTES."""
        return route_of(
            collective,
            connected=self.network.devices is not None,
            value_bytes=self.value_bytes,
            device_steps=self.device_steps,
        )

    def kept(self, k: Array, numel: Array) -> Array:
        """Entries that gtopk keeps in its middle rounds."""
        kept: Array = np.minimum(np.ceil(self.slack * k), numel)
        return kept

    def entry_bytes(self, k: Array, numel: Array) -> Array:
        """What k entries of so many take, without the header."""
        if self.wire == "plain":
            return (INDEX_BYTES + self.value_bytes) * k
        bits: Array = np.log2(np.maximum(numel, 1) / np.maximum(k, 1)) + 2
        return k * (self.value_bytes + bits / 8)

    def code(self, entries: Array) -> Array:
        """Seconds to code and decode so many entries; a plain block travels as it lies."""
        coded = self.wire == "packed" or self.value_bytes != VALUE_BYTES
        return entries * (self.machine.code_seconds_per_entry if coded else 0.0)

    def merge(self, entries: Array) -> Array:
        """Seconds to merge two blocks that have so many entries together."""
        return entries * self.machine.merge_seconds_per_entry

    def cross(self, entries: Array) -> Array:
        """Seconds until so many entries have come from the device to the CPU, or back."""
        return entries * (self.machine.copy_seconds_per_entry / 2)

    def pass_over(self, numel: Array) -> Array:
        """Seconds to add up two plain arrays where blocks lie: on the CPU, also of a device."""
        machine = self.machine
        per_entry = (  # on a device selecting is the device's, merging is not
            machine.merge_seconds_per_entry
            if machine.beside_cpu
            else machine.select_seconds_per_entry
        )
        return numel * per_entry

    def union(self, k: Array, numel: Array, ranks: int) -> Array:
        """Expected entries in the union of `ranks` blocks of k."""
        missed = np.power(1 - k / np.maximum(numel, 1), ranks)
        union: Array = self.overlap * k + (1 - self.overlap) * numel * (1 - missed)
        return union


class Account:
    """Adds up what the busiest rank does, round by round, for one collective."""

    def __init__(self, k: Array, numel: Array, setting: Setting) -> None:
        self.k, self.numel, self.setting = k, numel, setting
        machine = setting.machine
        self.seconds = machine.exchange_overhead + machine.scatter_seconds_per_entry * numel
        self.bytes = np.zeros_like(numel)

    def fetch(self) -> None:
        """The own block comes from where the gradients lie to the CPU."""
        self.work(self.setting.cross(self.k))

    def send(self, nbytes: Array | float, link: Link, messages: Array | float = 1) -> None:
        """Messages that the busiest rank sends, of so many bytes in total."""
        self.seconds = self.seconds + link.alpha * messages + link.beta * nbytes
        self.bytes = self.bytes + nbytes

    def wait_for(self, nbytes: Array, link: Link, messages: Array | float = 1) -> None:
        """Messages that the busiest rank receives while it has nothing to send."""
        self.seconds = self.seconds + link.alpha * messages + link.beta * nbytes

    def compare(self) -> None:
        """Headers, from all CPUs to all, before devices wait for each other."""
        network = self.setting.network
        for distance in distances_below(network.size):
            blocks = min(distance, network.size - distance)
            self.send(float(blocks * HEADER_BYTES), network.at(distance))

    def settle(self) -> None:
        """Returning what was not delivered: a walk through the own block and the sum."""
        if self.setting.network.size > 1:
            self.work(self.setting.merge(2 * self.k) + self.setting.cross(self.k))

    def work(self, seconds: Array | float) -> None:
        """Seconds of computing that nothing hides."""
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
    """The largest power of two of so many ranks."""
    return 1 << (size.bit_length() - 1)


def _gtopk(a: Account) -> None:
    """Rounds of swap and merge, k entries each; guests before and after."""
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
    """Bytes of a block on its way between devices: plain, and as long as it can get."""
    room = DEVICE_UNIT * np.ceil(np.maximum(entries, 1) / DEVICE_UNIT)
    message: Array = HEADER_BYTES + (INDEX_BYTES + VALUE_BYTES) * room
    return message


def _gtopk_between_devices(a: Account) -> None:
    """The same rounds by the links of devices, in messages of one length; the wire is plain.

    What a device does alone where all of the step is its own, settling and writing, takes as many
    launches as a merge, and counts as one.
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
    """As gtopk without cutting: blocks grow, and travel dense past density 1/2."""
    size, setting = a.setting.network.size, a.setting
    a.fetch()
    core = _core(size)

    def block(ranks: int) -> Array:
        union = setting.union(a.k, a.numel, ranks)
        sparse = setting.entry_bytes(union, a.numel)
        return HEADER_BYTES + np.where(2 * union > a.numel, VALUE_BYTES * a.numel, sparse)

    # Where a sum may become dense, a short message before each one says what follows.
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
        ranks = 2  # the busiest hosts stand for two from here on
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
    """All entries to the owners of their regions, at once; then digests, and the sums, to all."""
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
    """Dense reduce-scatter in a node, gtopk of the shards between nodes, blocks to all of the node.

    Adding up and selecting happen on the exchange's thread: each passes over its part of the
    bucket once. Gradients lie on the CPU.
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
