"""The cost of allgather, between CPUs and between devices."""

from __future__ import annotations

from hvd_sparse.planning.account import HEADER_BYTES, INDEX_BYTES, VALUE_BYTES, Account
from hvd_sparse.planning.routes import CALLS


def cost(a: Account) -> None:
    """Bruck's rounds, then all P blocks summed pair by pair."""
    size, setting = a.setting.network.size, a.setting
    if setting.route("allgather") != CALLS:
        _between_devices(a)
        return
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


def _between_devices(a: Account) -> None:
    """Every block to every device at once; all entries are merged in each of ceil(log2 P) rounds.

    A merge was timed for two blocks as long as one message, and with a cut.
    """
    size = a.setting.network.size
    devices = a.setting.network.devices
    assert devices is not None
    rounds = (size - 1).bit_length()
    a.compare(counts=1)
    a.fetch()
    a.hand(a.k, size * a.k)
    a.send_to_all((size - 1) * a.k)
    merged = (INDEX_BYTES + VALUE_BYTES) * size * a.k / 2
    a.work((size - 1) * devices.merge.alpha + rounds * devices.merge.beta * merged)
    a.apply(a.setting.union(a.k, a.numel, size))
