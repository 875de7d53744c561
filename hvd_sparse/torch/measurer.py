"""Measures what an adaptive compression is tuned for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import horovod.torch.mpi_ops as hvd_ops
import torch

from hvd_sparse.buckets import Layer
from hvd_sparse.compression import Compression
from hvd_sparse.exchange import Exchange
from hvd_sparse.measure import measure_machine, measure_network, slowest_machine
from hvd_sparse.network import Network
from hvd_sparse.sparsifiers import as_sparsifier
from hvd_sparse.torch.messages import wait_for
from hvd_sparse.tuner import Channel, Tuner
from hvd_sparse.world import World


class Measurer:
    """Measures what one optimizer's ranks run on.

    Args:
        world: The ranks.
        exchange: Between them.
        prefix: Of the names of Horovod's operations; the same on all ranks, of no other optimizer.
        process_set: Horovod's.
    """

    def __init__(self, world: World, exchange: Exchange, *, prefix: str, process_set: Any) -> None:
        self._world = world
        self._exchange = exchange
        self._name = f"{prefix}.allreduce"
        self._process_set = process_set

    def network(self) -> Network:
        """The network. Collective, with no bucket in flight."""
        return measure_network(self._exchange, self._world, self._allreduce)

    def tuner(
        self, layers: Sequence[Layer], compression: Compression, channel: Channel
    ) -> Tuner | None:
        """What tunes a compression, with the network and the machine measured. Collective.

        None where nothing is tuned: the compression is not adaptive, or no layer can travel sparse.
        """
        if not compression.adaptive or not layers:
            return None
        network = self.network()  # first: all ranks are through with it at nearly the same time
        machine = measure_machine(as_sparsifier(compression.sparsifier))
        return Tuner(
            layers,
            compression,
            network=network,
            machine=slowest_machine(self._world, machine),
            channel=channel,
            rank=self._world.rank,
        )

    def _allreduce(self, nbytes: int) -> float:
        tensor = torch.zeros(nbytes // 4)
        start = time.perf_counter()
        handle = hvd_ops.allreduce_async_(
            tensor, name=self._name, op=hvd_ops.Sum, process_set=self._process_set
        )
        wait_for(handle, self._exchange)
        return time.perf_counter() - start
