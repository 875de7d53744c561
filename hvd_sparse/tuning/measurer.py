"""Measures the network and the machine for an adaptive compression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hvd_sparse.compression import Compression
from hvd_sparse.compression.base import SparseCompression
from hvd_sparse.compression.buckets import Layer, check_size
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.place import OnCpu, Place
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.profile import Machine
from hvd_sparse.ranks.world import World
from hvd_sparse.tuning.decision import Channel
from hvd_sparse.tuning.measure import measure_machine, measure_network, slowest_machine
from hvd_sparse.tuning.measure_devices import measure_devices
from hvd_sparse.tuning.over_time import TunerOverTime
from hvd_sparse.tuning.stages import Tuning
from hvd_sparse.tuning.tuner import Tuner


class Measurer:
    """Measures the network and the machines of one optimizer's ranks.

    Args:
        world: The ranks.
        exchange: The exchange between them.
        allreduce: Lets the host sum a tensor of that many bytes and that type; returns the seconds.
        place: Device of the gradients; None: the CPU.

    Attributes:
        place: Device of the gradients.
    """

    def __init__(
        self,
        world: World,
        exchange: Exchange,
        *,
        allreduce: Callable[[int, str], float],
        place: Place | None = None,
    ) -> None:
        self._world = world
        self._exchange = exchange
        self._allreduce = allreduce
        self.place = place or OnCpu()

    def network(self) -> Network:
        """Measures the network, also between devices. Collective, with no bucket in flight."""
        network = measure_network(self._exchange, self._world, self._allreduce)
        devices = measure_devices(self._exchange, self._world, self.place.device)
        return replace(network, devices=devices)

    def tuner(
        self,
        layers: Sequence[Layer],
        compression: Compression,
        channel: Channel,
        *,
        keeps_order: bool = False,
    ) -> Tuner | None:
        """Measures network and machine, and returns a tuner for the compression. Collective.

        Returns None if nothing is tuned: the compression is not adaptive, or no layer can be
        sparse.

        Raises:
            UnsupportedError: On every rank: a layer has more than 2^31 - 1 entries.
            UnavailableError: On every rank, if one of them could not measure.
            InvalidArgumentError: HVD_SPARSE_NCCL or HVD_SPARSE_CUDA_AWARE_MPI has an invalid value
                on some rank.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        if not compression.adaptive or not layers:
            return None
        network, machine = self._measured(layers, compression)
        tuner = Tuner(
            layers,
            compression,
            network=network,
            machine=machine,
            channel=channel,
            rank=self._world.rank,
            keeps_order=keeps_order,
            place=self.place,
        )
        tuner.tuning = self._explained(tuner.tuning)
        return tuner

    def tuner_over_time(
        self,
        layers: Sequence[Layer],
        compression: SparseCompression,
        *,
        agreed: Callable[[str], str] | None = None,
    ) -> TunerOverTime:
        """Measures network and machine, and returns a tuner of local steps. Collective.

        Args:
            layers: The layers, one at least: all parameters.
            compression: The user's compression.
            agreed: See TunerOverTime.

        Raises as `tuner`.
        """
        network, machine = self._measured(layers, compression)
        tuner = TunerOverTime(
            layers,
            compression,
            network=network,
            machine=machine,
            rank=self._world.rank,
            agreed=agreed,
        )
        tuner.tuning = self._explained(tuner.tuning)
        return tuner

    def _explained(self, tuning: Tuning) -> Tuning:
        """Returns the tuning with how blocks go from device to device."""
        return replace(tuning, between_devices=self._exchange.between_devices)

    def _measured(
        self, layers: Sequence[Layer], compression: Compression
    ) -> tuple[Network, Machine]:
        for layer in layers:
            check_size(layer)
        network = self.network()  # first: all ranks finish it at nearly the same time
        sparsifier = as_sparsifier(compression.sparsifier)
        return network, slowest_machine(
            self._world, lambda: measure_machine(sparsifier, self.place)
        )
