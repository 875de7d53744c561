"""The cost of recursive doubling."""

from __future__ import annotations

import numpy as np

from hvd_sparse.planning.account import HEADER_BYTES, VALUE_BYTES, Account, Array
from hvd_sparse.planning.models.gtopk import core_size


def cost(a: Account) -> None:
    """Like gtopk without cutting: blocks grow, and are sent dense past density 1/2."""
    size, setting = a.setting.network.size, a.setting
    a.fetch()
    core = core_size(size)

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
    a.apply(setting.union(a.k, a.numel, size))
