"""The ranks of `hvd-sparse bench`, whichever library runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hvd_sparse.bench.bench import SPARSIFIER
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.place import OnCpu
from hvd_sparse.planning.cluster import Cluster
from hvd_sparse.ranks.host import Host
from hvd_sparse.tuning.measure import measure_machine, measure_network, slowest_machine

Array: TypeAlias = NDArray[np.float32]


class JobRanks:
    """All ranks of this job; constructed by all of them together.

    Args:
        host: The library that runs them.
        allreduce: That library's sum of an array over all ranks, in place.
    """

    def __init__(self, host: Host, allreduce: Callable[[Array], None]) -> None:
        self._host = host
        self._sum = allreduce
        self.world = host.world()
        self.library = host.name
        self._exchange: Exchange | None = None

    def connect(self) -> Exchange:
        """Returns an exchange between the ranks, which `barrier` uses. Collective."""
        self._exchange = Exchange.between_ranks(self.world, name="bench")
        return self._exchange

    def measure(self, exchange: Exchange) -> Cluster:
        """Measures the network and the machine, as the slowest rank sees them. Collective."""
        network = measure_network(exchange, self.world, self._allreduce_seconds)
        sparsifier = as_sparsifier(SPARSIFIER)
        machine = slowest_machine(self.world, lambda: measure_machine(sparsifier))
        return Cluster(network=network, machine=machine)

    def barrier(self) -> None:
        """Swaps along a hypercube; from Horovod's barrier ranks return up to 1 ms apart."""
        assert self._exchange is not None
        rank, size = self.world.rank, self.world.size
        core = 1 << (size.bit_length() - 1)
        guest = rank ^ core  # the guest of a host, or the host of a guest
        if rank >= core:
            self._exchange.swap(guest, 0, 2)  # the first tells its host, the second waits for it
            return
        if guest < size:
            self._exchange.swap(guest, 0, 1)
        distance = 1
        while distance < core:
            self._exchange.swap(rank ^ distance, 0, 1)
            distance *= 2
        if guest < size:
            self._exchange.swap(guest, 0, 1)

    def allreduce(self, array: Array) -> None:
        """Sums an array over all ranks by their library, in place."""
        self._sum(array)

    def _allreduce_seconds(self, nbytes: int, values: str) -> float:
        """Returns the seconds that the library takes to sum `nbytes` bytes of a type."""
        name = f"hvd_sparse.bench.{values}"
        return self._host.timed_sum(nbytes, values, name, OnCpu()).result()
