"""The cost of hierarchical."""

from __future__ import annotations

from dataclasses import replace

from hvd_sparse.planning.account import HEADER_BYTES, INDEX_BYTES, VALUE_BYTES, Account
from hvd_sparse.planning.models import gtopk
from hvd_sparse.planning.network import Network


def cost(a: Account) -> None:
    """Dense reduce-scatter in a node, gtopk of shards between nodes, then allgather in the node.

    The exchange's thread adds up and selects, each in one pass over its part of the bucket.
    Gradients lie on the CPU.
    """
    network, setting = a.setting.network, a.setting
    local_size, local = network.local_size, network.local
    assert local is not None
    others = local_size - 1
    shard = VALUE_BYTES * a.numel / local_size
    block = (INDEX_BYTES + VALUE_BYTES) * a.k / local_size
    within = others * (2 * HEADER_BYTES + shard + block)
    messages = others + others.bit_length()
    a.seconds = a.seconds + messages * local.alpha + local.beta * within
    a.work(setting.machine.select_seconds_per_entry * a.numel)
    between = Network(
        size=network.nodes,
        links=tuple(
            (1 << bit, network.at(local_size << bit))
            for bit in range((network.nodes - 1).bit_length())
        ),
        dense=network.dense,
    )
    machine = replace(a.setting.machine, scatter_seconds_per_entry=0.0, exchange_overhead=0.0)
    setting = replace(setting, network=between, machine=machine)
    owner = Account(a.k / local_size, a.numel / local_size, setting)
    gtopk.cost(owner)
    a.seconds = a.seconds + owner.seconds
    a.bytes = a.bytes + owner.bytes + within
