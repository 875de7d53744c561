"""Measures the links between the ranks' devices, and a device's own work in a round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import numpy as np

from hvd_sparse import _core
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.place import OnCpu
from hvd_sparse.planning.models.gtopk import device_message
from hvd_sparse.planning.network import GpuLinks, Link, distances_below
from hvd_sparse.ranks.world import World
from hvd_sparse.tuning.measure import fit_link, slowest_numbers

# Number of swaps by bytes of a message. The length of the longest messages depends on the times of
# the others: on slow links a long one adds no information, and would take too long.
_SWAPS = {1 << 10: 9, 64 << 10: 9}
_LONG_SWAPS, _SHORTER_SWAPS = {4 << 20: 5}, {512 << 10: 5}
_FAST_SECONDS = 2.5e-4  # limit for the larger message of `_SWAPS`, 260 MB/s

# Entries of blocks that are merged, and handed to a device.
_ENTRIES = (64, 4096, 65536)
_REPETITIONS = 9


def measure_devices(exchange: Exchange, world: World, device: str) -> GpuLinks | None:
    """Measures the links between the ranks' devices, all sending at once. Collective.

    Like `measure_network`, for gradients on devices that something connects on all ranks. It makes
    the same swaps, and times the work of a device between them. A time is the median of several
    measurements on the slowest rank.

    Args:
        exchange: The exchange, with no bucket in flight.
        world: The ranks of the exchange.
        device: Device of this rank's gradients: "cpu", "cuda:0" and the like.

    Returns:
        The measurements, the same on all ranks; None if nothing connects the devices.

    Raises:
        UnavailableError: On every rank, if the device of one of them could not be measured, or one
            of these variables is 1 and asks for something that is not available; then the exchange
            has ended.
        InvalidArgumentError: On all ranks: HVD_SPARSE_NCCL or HVD_SPARSE_CUDA_AWARE_MPI is invalid
            on one of them; the exchange has then ended.
        ExchangeFailedError: Another rank ended the exchange, or died.
    """
    may_connect = _core.with_cuda and device != OnCpu.device
    if not all(world.allgather_object(may_connect, bool)):
        return None
    with exchange.acknowledging() as core:
        return _measure_connected(core, world) if core.connect_devices(device) else None


def _measure_connected(core: _core.Exchange, world: World) -> GpuLinks:
    alone = slowest_numbers(
        world,
        lambda: [
            statistics.median(timed(entries, _REPETITIONS))
            for timed in (core.merge_on_device, core.copy_to_device)
            for entries in _ENTRIES
        ],
    )
    lengths = device_message(np.array(_ENTRIES, dtype=np.float64)).tolist()
    merge, handing = (
        fit_link(dict(zip(lengths, seconds, strict=True)))
        for seconds in (alone[: len(_ENTRIES)], alone[len(_ENTRIES) :])
    )
    # Distances are measured one after the other, on all ranks.
    links = tuple((away, _link(core, world, away)) for away in distances_below(world.size))
    return GpuLinks(links=links, merge=merge, handing=handing)


def _link(core: _core.Exchange, world: World, distance: int) -> Link:
    """Measures the link to partners that are `distance` ranks away. Collective."""
    partner = world.rank ^ distance

    def slowest(swaps: Mapping[int, int]) -> list[float]:
        medians = [0.0] * len(swaps)
        if partner < world.size:
            medians = [
                statistics.median(core.swap_between_devices(partner, nbytes, count))
                for nbytes, count in swaps.items()
            ]
        gathered = world.allgather_object(medians, list[float])
        return np.max(gathered, axis=0).tolist()  # type: ignore[no-any-return]

    seconds = slowest(_SWAPS)
    longer = _LONG_SWAPS if seconds[-1] < _FAST_SECONDS else _SHORTER_SWAPS
    seconds += slowest(longer)
    return fit_link(dict(zip([*_SWAPS, *longer], seconds, strict=True)))
