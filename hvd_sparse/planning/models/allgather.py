"""The cost of allgather."""

from __future__ import annotations

from hvd_sparse.planning.account import HEADER_BYTES, Account


def cost(a: Account) -> None:
    """Bruck's rounds, then all P blocks summed pair by pair."""
    size, setting = a.setting.network.size, a.setting
    a.fetch()
    block = HEADER_BYTES + setting.entry_bytes(a.k, a.numel)
    distance = 1
    while distance < size:
        a.send(min(distance, size - distance) * block, setting.network.at(distance))
        pairs, last = divmod(size - distance, 2 * distance)
        right = pairs * distance + min(last, distance)  # ranks in the right halves of all pairs
        whole = pairs + (last > 0)
        a.work(setting.merge((whole + right / distance) * setting.union(a.k, a.numel, distance)))
        distance *= 2
    if size > 1:
        a.work(setting.code(a.k * size / 2))  # packs one block, unpacks P - 1
    a.apply(setting.union(a.k, a.numel, size))
