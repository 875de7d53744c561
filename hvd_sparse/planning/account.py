"""The account of an exchange: what a collective's rounds take, added up by its cost model.

Written over arrays of k and numel, so that a plan can price thousands of buckets at once. The
models are in hvd_sparse/planning/models/, one file for each collective.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hvd_sparse import _core
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.places.buffer import BYTES
from hvd_sparse.planning.network import Link, Network, distances_below
from hvd_sparse.planning.profile import Machine
from hvd_sparse.planning.routes import CALLS

Array: TypeAlias = NDArray[np.float64]

HEADER_BYTES = _core.header_bytes
INDEX_BYTES = _core.index_bytes
VALUE_BYTES = _core.value_bytes  # of float32, in which gradients are summed
COUNT_BYTES = 4  # of a number of entries, beside a header
WIRES = ("plain", "packed")
_SPARSE = frozenset(_core.collectives())
SCALE_BYTES = 1 / 64  # of each value of int8 and int4
BYTES_OF_VALUES = BYTES | {
    "int8": 1 + SCALE_BYTES,
    "int4": 1 / 2 + SCALE_BYTES,
    "ternary": 1 / 5,
    "binary": 0,
}


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
        collective_options: Options of collectives, by name, as a compression has them.
        values: Type of the values on the wire, an option of compressions.
        nodes_first: True if a collective for selected entries follows a sum of each node's ranks.
        by_devices: True if blocks go from device to device, where these are connected and the
            collective can.
    """

    network: Network
    machine: Machine
    wire: str = "plain"
    overlap: float = 0.0
    collective_options: Mapping[str, float] = field(default_factory=dict)
    values: str = "float32"
    nodes_first: bool = False
    by_devices: bool = True

    def __post_init__(self) -> None:
        if self.wire not in WIRES:
            raise InvalidArgumentError(f"wire must be one of {list(WIRES)}, got {self.wire!r}")
        if self.values not in BYTES_OF_VALUES:
            raise InvalidArgumentError(
                f"values must be one of {list(BYTES_OF_VALUES)}, got {self.values!r}"
            )
        if not 0 <= self.overlap <= 1:
            raise InvalidArgumentError(f"overlap must lie in [0, 1], got {self.overlap}")

    @property
    def value_bytes(self) -> float:
        """Bytes of a value on the wire: the most of a ternary one, none if all are one number."""
        return BYTES_OF_VALUES[self.values]

    def route(self, collective: str) -> str:
        """Returns the route of a bucket that this collective exchanges: one of routes.ROUTES."""
        if collective not in _SPARSE:
            return CALLS
        return _core.route_of(
            collective,
            values=self.values,
            packed=self.wire == "packed",
            connected=self.by_devices and self.network.devices is not None,
        )

    def entry_bytes(self, k: Array, numel: Array) -> Array:
        """Returns the bytes of k entries out of `numel`, without the header."""
        if self.wire == "plain":
            return (INDEX_BYTES + self.value_bytes) * k
        bits: Array = np.log2(np.maximum(numel, 1) / np.maximum(k, 1)) + 2
        return k * (self.value_bytes + bits / 8)

    def code(self, entries: Array) -> Array:
        """Returns the seconds to code and decode entries; a plain block is sent as it lies."""
        coded = self.wire == "packed" or self.values != "float32"
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
        if not machine.on_device:
            return numel * machine.select_seconds_per_entry
        # Profiles of before have of the CPU only the rate of merging.
        return numel * (machine.pass_seconds_per_entry or machine.merge_seconds_per_entry)

    def take(self, numel: Array) -> Array:
        """Returns the seconds to accumulate, code and fetch all entries for a dense sum."""
        machine = self.machine
        on_device, of_cpu = machine.take_seconds_per_entry, machine.select_seconds_per_entry
        return numel * (on_device if machine.on_device else of_cpu)

    def write(self, numel: Array) -> Array:
        """Returns the seconds to copy sums of all entries to the device and write them there."""
        return numel * self.machine.write_seconds_per_entry

    def union(self, k: Array, numel: Array, ranks: int) -> Array:
        """Returns the expected number of entries in the union of `ranks` blocks of k."""
        missed = np.power(1 - k / np.maximum(numel, 1), ranks)
        union: Array = self.overlap * k + (1 - self.overlap) * numel * (1 - missed)
        return union


class Account:
    """The time and the bytes of the busiest rank, added up round by round, for one collective.

    Attributes:
        seconds: The time.
        bytes: The bytes.
        taking: The part of the time that delays backward, as selection does.
        applied: The entries of the sum.
    """

    def __init__(self, k: Array, numel: Array, setting: Setting) -> None:
        self.k, self.numel, self.setting = k, numel, setting
        machine = setting.machine
        self.seconds = machine.exchange_overhead + machine.scatter_seconds_per_entry * numel
        self.bytes = np.zeros_like(numel)
        self.taking = np.zeros_like(numel)
        self.applied = k

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

    def apply(self, entries: Array) -> None:
        """Adds the copy of the sum, of so many entries, to where the gradients lie."""
        self.applied = entries
        self.work(self.setting.cross(entries))

    def compare(self, counts: int = 0) -> None:
        """Adds the allgather of headers between CPUs, before devices wait for each other.

        Args:
            counts: How many numbers of entries each rank tells the others.
        """
        network = self.setting.network
        for distance in distances_below(network.size):
            blocks = min(distance, network.size - distance)
            self.send(float(blocks * (HEADER_BYTES + COUNT_BYTES * counts)), network.at(distance))

    def hand(self, up: Array, down: Array) -> None:
        """Adds copies of entries to the device, and of others back, around its messages."""
        devices = self.setting.network.devices
        assert devices is not None
        both = (INDEX_BYTES + VALUE_BYTES) * (up + down)
        self.work(devices.handing.alpha + devices.handing.beta * both / 2)

    def send_to_all(self, entries: Array) -> None:
        """Adds messages from device to device, to all other ranks, of so many entries in total.

        Messages that are sent at once were not timed: each costs as much as one alone.
        """
        devices = self.setting.network.devices
        assert devices is not None
        others = self.setting.network.size - 1
        self.send((INDEX_BYTES + VALUE_BYTES) * entries, devices.link, others)

    def settle(self) -> None:
        """Adds the return of undelivered entries: a walk through the own block and the sum."""
        if self.setting.network.size > 1:
            self.work(self.setting.merge(2 * self.k) + self.setting.cross(self.k))

    def work(self, seconds: Array | float) -> None:
        """Adds seconds of computing that nothing hides."""
        self.seconds = self.seconds + seconds
