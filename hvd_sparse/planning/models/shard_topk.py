"""The cost of shard top-k, between CPUs and between devices."""

from __future__ import annotations

import numpy as np

from hvd_sparse import _core
from hvd_sparse.planning.account import HEADER_BYTES, Account, Array
from hvd_sparse.planning.routes import CALLS


def cost(a: Account) -> None:
    """All entries to the owners of their shards at once, and the largest sums to all ranks."""
    size, setting = a.setting.network.size, a.setting
    if size == 1:
        a.fetch()
        a.apply(a.k)
        return
    sums = np.minimum(_core.shard_topk_sums * a.k, a.numel)
    if setting.route("shard_topk") != CALLS:
        _between_devices(a, sums)
        return
    a.fetch()
    link, gap = setting.network.link, setting.network.gap
    others = size - 1
    part = setting.entry_bytes(a.k / size, a.numel / size)
    a.send(others * (HEADER_BYTES + part), link)
    a.work((link.alpha if gap is None else gap) * (others - 1))
    a.work(setting.code(2 * a.k))
    _own(a)
    taken = setting.entry_bytes(sums / size, a.numel / size)
    a.send(others * (HEADER_BYTES + taken), link, others.bit_length())
    a.work(setting.code(sums))
    a.apply(sums)


def _own(a: Account) -> None:
    """Adds the work of an owner, which is the CPU's: what arrives joins its residual."""
    size, setting = a.setting.network.size, a.setting
    arrived = setting.union(a.k, a.numel, size) / size
    a.work(setting.merge(a.k * (size - 1).bit_length()))
    a.work(setting.pass_over(a.numel / size) + setting.merge(2 * arrived))


def _between_devices(a: Account, sums: Array) -> None:
    """Two rounds of messages from device to device, with an owner's work between them."""
    size = a.setting.network.size
    share = (size - 1) / size
    a.compare(counts=size)
    a.fetch()
    a.hand(a.k, a.k)
    a.send_to_all(share * a.k)
    _own(a)
    a.compare(counts=1)
    a.hand(sums / size, sums)
    a.send_to_all(share * sums)
    a.apply(sums)
