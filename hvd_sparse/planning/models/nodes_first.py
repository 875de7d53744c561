"""The cost of any collective for selected entries between nodes whose ranks are summed first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hvd_sparse.planning.account import HEADER_BYTES, INDEX_BYTES, VALUE_BYTES, Account
from hvd_sparse.planning.network import Network


def cost(a: Account, between_nodes: Callable[[Account], None]) -> None:
    """Dense reduce-scatter in a node, the exchange of shards between nodes, allgather in the node.

    The exchange's thread adds up and selects, each in one pass over its part of the bucket.
    Gradients lie on the CPU.
    """
    network, setting = a.setting.network, a.setting
    local_size, local = network.local_size, network.local
    assert local is not None
    others, share = local_size - 1, 1 / local_size
    between = Network(
        size=network.nodes,
        links=tuple(
            (1 << bit, network.at(local_size << bit))
            for bit in range((network.nodes - 1).bit_length())
        ),
        dense=network.dense,
        gap=network.gap,
    )
    machine = replace(setting.machine, scatter_seconds_per_entry=0.0, exchange_overhead=0.0)
    owner = Account(
        a.k * share,
        a.numel * share,
        replace(setting, network=between, machine=machine, nodes_first=False),
    )
    between_nodes(owner)

    finished = HEADER_BYTES + (INDEX_BYTES + VALUE_BYTES) * owner.applied
    within = others * (HEADER_BYTES + VALUE_BYTES * a.numel * share + finished)
    a.seconds = a.seconds + (others + others.bit_length()) * local.alpha + local.beta * within
    a.work(setting.machine.select_seconds_per_entry * a.numel)
    a.seconds = a.seconds + owner.seconds
    a.bytes = a.bytes + owner.bytes + within
