"""The cost of the shard sum, the core's own dense sum."""

from __future__ import annotations

import numpy as np

from hvd_sparse import _core
from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.planning.account import HEADER_BYTES, VALUE_BYTES, Account, Array, Setting
from hvd_sparse.planning.network import Link

# Passes over all entries beside the messages: decoding and adding every rank's part of the own
# shard, and decoding and writing all shards.
PASSES_BESIDE = 2


def cost(a: Account) -> None:
    """Parts of all shards to their owners, sums to all ranks, in chunks that follow each other.

    All that a rank does is counted here, taking and writing included: what is done beside the
    messages costs nothing while these take longer, but for the last chunk. Error feedback and
    coding are on the thread that selects.
    """
    network, setting = a.setting.network, a.setting
    local_size, local = network.local_size, network.local
    a.taking = setting.take(a.numel)
    a.seconds = setting.machine.exchange_overhead + a.taking
    numel, size, link, gap = a.numel, network.size, network.link, network.gap
    sums_nodes = _core.sums_nodes(SHARD_SUM, nodes_first=False, size=size, local_size=local_size)
    adds_up_nodes = sums_nodes and not setting.machine.on_device
    if adds_up_nodes and local is not None and size % local_size == 0:
        within = 2 * (local_size - 1) * VALUE_BYTES * numel / local_size
        a.send(within, local, 2 * (local_size - 1))
        a.work(2 * setting.pass_over(numel))
        numel, size, link = numel / local_size, network.nodes, network.at(local_size)
    if size == 1:
        a.work(_beside(setting, numel, 1))
        return
    _between(a, numel, size, link, link.alpha if gap is None else gap)


def _between(a: Account, numel: Array, size: int, link: Link, gap: float) -> None:
    """Adds the sum over ranks that share no node.

    Args:
        a: The account.
        numel: Entries that these ranks sum.
        size: Number of these ranks.
        link: The link between them.
        gap: Seconds that each further message adds when several are sent at once.
    """
    others, setting = size - 1, a.setting
    half = others / size * numel * setting.value_bytes
    chunks = np.maximum(1.0, np.ceil(half / _core.shard_sum_round_bytes))
    headers = 2 * others * chunks * HEADER_BYTES
    moving = link.beta * (2 * half + headers) + 2 * others * chunks * gap
    beside = _beside(setting, numel, PASSES_BESIDE)
    a.work(2 * link.alpha + np.maximum(moving, beside) + beside / chunks)
    a.bytes = a.bytes + 2 * half + headers


def _beside(setting: Setting, numel: Array, passes: int) -> Array:
    """Returns the seconds of so many passes of the CPU, while a device writes."""
    seconds: Array = np.maximum(passes * setting.pass_over(numel), setting.write(numel))
    return seconds
