"""The cost of the host's allreduce."""

from __future__ import annotations

from hvd_sparse.planning.account import VALUE_BYTES, Account


def cost(a: Account) -> None:
    """The host's allreduce, as measured; it writes the gradient itself."""
    network = a.setting.network
    nbytes = VALUE_BYTES * a.numel
    a.seconds = network.dense.alpha + network.dense.beta * nbytes
    a.bytes = 2 * (network.size - 1) / network.size * nbytes
