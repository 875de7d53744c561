"""Memory needs of a replay's ranks, and the number of ranks that fit into a machine."""

from __future__ import annotations

from collections.abc import Sequence

from modes import compression_of
from paper_models import Model

from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.planning.plan import entries_to_send

GIB = 2**30

_PROCESS = 240 << 20  # Python, torch and Horovod
_POOLS = 8 << 20  # pools of gradients
_FUSION = 128 << 20  # Horovod's fusion buffer
_FLOAT, _ENTRY = 4, 8  # bytes


def needed(model: Model, ranks: int, modes: Sequence[str], *, ddp: bool = False) -> int:
    """Returns the bytes of all ranks together: gradients once, and each mode's memory.

    A sparse mode keeps a residual, and blocks for what each rank selects: one per rank (allgather),
    and two more for merging; our dense sums keep what is sent and what is received. Horovod's need
    the size of the largest tensor again, for received data. Under DDP each mode has buckets for all
    gradients, and a hook at most copies, errors and products of them.
    """
    per_rank = _PROCESS + _POOLS + _FLOAT * model.numel
    if any(mode != "compute" for mode in modes):
        largest = max(tensor.numel for tensor in model.tensors)
        per_rank += _FUSION + _FLOAT * largest
    for mode in modes:
        if ddp and mode != "compute":
            hooks = 3 if mode.startswith("DDP(") else 0
            per_rank += (1 + hooks) * _FLOAT * model.numel
        if mode not in ("compute", "dense") and not mode.startswith("DDP"):
            compression = compression_of(mode)
            entries = entries_to_send(model.numel, compression.density)
            sums = compression.collective_name == SHARD_SUM
            blocks = 2 * _FLOAT * entries if sums else (ranks + 2) * _ENTRY * entries
            per_rank += _FLOAT * model.numel + blocks
    return ranks * per_rank


def most_ranks(model: Model, wanted: int, modes: Sequence[str], limit: float) -> int:
    """Returns the most ranks that fit into `limit` bytes: `wanted`, halved until it fits.

    Raises:
        ValueError: Not even two ranks fit.
    """
    ranks = wanted
    while needed(model, ranks, modes) > limit:
        ranks //= 2
        if ranks < 2:
            raise ValueError(
                f"limit is {limit / GIB:.1f} GiB and two ranks of {model.name} do not fit"
            )
    return ranks
