"""The cost of split and allgather."""

from __future__ import annotations

import math

from hvd_sparse import _core
from hvd_sparse.planning.account import HEADER_BYTES, INDEX_BYTES, Account

# The fraction of entries beyond k that digests let through, for even shares: collectives/digest.h.
DIGEST_SURPLUS = 1 / 16


def cost(a: Account) -> None:
    """All entries to the owners of their regions at once, then digests and sums to all ranks."""
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
    digest = INDEX_BYTES * (17 + 8.5 * math.log(size))
    a.send(others * digest, link, rounds * (1 + 1 / _core.steps_between_regions))
    kept = 1 + DIGEST_SURPLUS
    a.send(others * (HEADER_BYTES + kept * part), link, rounds)
    a.work(setting.code((1 + kept) * a.k * others / size) + setting.merge((rounds + kept) * a.k))
    a.settle()
    a.work(setting.cross(a.k))
