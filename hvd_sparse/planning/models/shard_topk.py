"""The cost of shard top-k."""

from __future__ import annotations

import numpy as np

from hvd_sparse import _core
from hvd_sparse.planning.account import HEADER_BYTES, Account


def cost(a: Account) -> None:
    """All entries to the owners of their shards at once, and the largest sums to all ranks."""
    size, setting = a.setting.network.size, a.setting
    a.fetch()
    if size == 1:
        a.apply(a.k)
        return
    link, gap = setting.network.link, setting.network.gap
    others = size - 1
    part = setting.entry_bytes(a.k / size, a.numel / size)
    a.send(others * (HEADER_BYTES + part), link)
    a.work((link.alpha if gap is None else gap) * (others - 1))
    arrived = setting.union(a.k, a.numel, size) / size
    a.work(setting.code(2 * a.k) + setting.merge(a.k * (size - 1).bit_length()))
    a.work(setting.pass_over(a.numel / size) + setting.merge(2 * arrived))
    sums = np.minimum(_core.shard_topk_sums * a.k, a.numel)
    taken = setting.entry_bytes(sums / size, a.numel / size)
    a.send(others * (HEADER_BYTES + taken), link, others.bit_length())
    a.work(setting.code(sums))
    a.apply(sums)
