"""The cost models, one module for each collective, as docs/algorithms.md states them.

The order decides between equal costs.
"""

from __future__ import annotations

from collections.abc import Callable

from hvd_sparse.planning.account import Account
from hvd_sparse.planning.models import (
    allgather,
    dense,
    gtopk,
    recursive_doubling,
    shard_sum,
    shard_topk,
)

MODELS: dict[str, Callable[[Account], None]] = {
    "allgather": allgather.cost,
    "gtopk": gtopk.cost,
    "recursive_doubling": recursive_doubling.cost,
    "shard_topk": shard_topk.cost,
    "dense": dense.cost,
    "shard_sum": shard_sum.cost,
}
