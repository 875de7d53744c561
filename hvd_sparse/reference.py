"""The oracle: selection and collectives in plain NumPy, written without a look at the C++ code.

Slow and clear. Tests compare the core with it; nothing else uses it. All ranks live in one process
here: what a rank would send is an element of a list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Block(NamedTuple):
    """Entries of a flat array.

    Attributes:
        indices: int64, strictly ascending.
        values: float32, one per index.
    """

    indices: NDArray[np.int64]
    values: NDArray[np.float32]

    def to_dense(self, numel: int) -> NDArray[np.float32]:
        """The flat array of `numel` entries that holds this block, and zeros elsewhere."""
        return to_dense(self, numel)


class Reduced(NamedTuple):
    """What a collective leaves behind.

    Attributes:
        block: The sum that every rank holds.
        delivered: For each rank, the ascending indices of its own selected entries that are part
            of the sum. They leave its residual; all its other entries stay there.
    """

    block: Block
    delivered: list[NDArray[np.int64]]


def to_dense(block: Block, numel: int) -> NDArray[np.float32]:
    """The flat array of `numel` entries that holds `block`, and zeros elsewhere."""
    dense = np.zeros(numel, dtype=np.float32)
    dense[block.indices] = block.values
    return dense


def top_k(u: ArrayLike, k: int) -> Block:
    """The `k` largest magnitudes of a flat array; ties go to the lower index.

    Zeros and NaN are never selected, so there may be fewer than `k` entries.
    """
    dense = np.asarray(u, dtype=np.float32).ravel()
    candidates = np.flatnonzero(np.abs(dense) > 0)  # False for NaN
    return keep_top_k(Block(candidates.astype(np.int64), dense[candidates]), k)


def keep_top_k(block: Block, k: int) -> Block:
    """The `k` largest magnitudes of a block, zeros included; ties go to the lower index."""
    largest = _largest(block.values, k)
    return Block(block.indices[largest], block.values[largest])


def merge(a: Block, b: Block) -> Block:
    """The union of two blocks; values at equal indices are added in float32."""
    indices = np.union1d(a.indices, b.indices)
    values = np.zeros((2, indices.size), dtype=np.float32)
    held = np.zeros((2, indices.size), dtype=np.bool_)
    for row, block in enumerate((a, b)):
        places = np.searchsorted(indices, block.indices)
        values[row, places] = block.values
        held[row, places] = True
    total = np.where(
        held[0] & held[1], values[0] + values[1], np.where(held[0], values[0], values[1])
    )
    return Block(indices, total)


def top_k_merge(a: Block, b: Block, k: int) -> Block:
    """gTop-k's operator: the `k` largest magnitudes of `merge(a, b)`."""
    return keep_top_k(merge(a, b), k)


def allgather(blocks: Sequence[Block]) -> Reduced:
    """The sum of all blocks, added in rank order; everything is delivered.

    Args:
        blocks: The selected block of each rank; their sizes may differ.
    """
    total = blocks[0]
    for block in blocks[1:]:
        total = merge(total, block)
    return Reduced(total, [block.indices for block in blocks])


def gtopk(blocks: Sequence[Block], k: int, slack: float = 1.0) -> Reduced:
    """gTop-k over any number of ranks: recursive doubling with a bounded merge.

    The largest power of two of ranks form the core. A rank beyond it is the guest of the core rank
    that is so many ranks below: its block joins that rank's before the rounds. An entry is
    delivered if it has been in the core rank's running block without a break since then.

    Args:
        blocks: The selected block of each rank; what exceeds `k` entries is not sent.
        k: Entries kept by the last merge.
        slack: The merges before it keep this times as many, rounded up.

    Reference:
        Shi et al., "A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for
        Low Bandwidth Networks", ICDCS 2019, https://arxiv.org/abs/1901.04359
    """
    size = len(blocks)
    core = 1 << (size.bit_length() - 1)
    kept = math.ceil(slack * k)
    sent = [keep_top_k(block, k) for block in blocks]

    running = sent[:core]
    for guest in range(core, size):
        running[guest - core] = top_k_merge(running[guest - core], sent[guest], kept)
    survived = [block.indices for block in running]

    distance = 1
    while distance < core:
        keep = k if 2 * distance == core else kept
        running = [top_k_merge(running[r], running[r ^ distance], keep) for r in range(core)]
        survived = [np.intersect1d(survived[r], running[r].indices) for r in range(core)]
        distance *= 2

    delivered = [np.intersect1d(sent[rank].indices, survived[rank % core]) for rank in range(size)]
    return Reduced(running[0], delivered)


def recursive_doubling(blocks: Sequence[Block]) -> Reduced:
    """The sum of all blocks, added along a hypercube; everything is delivered.

    Guests join their host as in `gtopk`, and nothing is cut.

    Args:
        blocks: The selected block of each rank; their sizes may differ.

    Reference:
        Renggli et al., "SparCML: High-performance sparse communication for machine learning",
        SC 2019, https://arxiv.org/abs/1802.08021
    """
    size = len(blocks)
    core = 1 << (size.bit_length() - 1)
    running = list(blocks[:core])
    for guest in range(core, size):
        running[guest - core] = merge(running[guest - core], blocks[guest])
    while len(running) > 1:
        running = [merge(a, b) for a, b in zip(running[::2], running[1::2], strict=True)]
    return Reduced(running[0], [block.indices for block in blocks])


def split_allgather(blocks: Sequence[Block], k: int) -> Reduced:
    """The `k` largest entries of the sum; of each rank all entries at those indices are delivered.

    Args:
        blocks: The selected block of each rank; their sizes may differ.
        k: Entries of the sum that are kept; of one rank alone, all are.

    Reference:
        Li and Hoefler, "Near-optimal sparse allreduce for distributed deep learning", PPoPP 2022,
        https://arxiv.org/abs/2201.07598
    """
    total = recursive_doubling(blocks).block
    if len(blocks) > 1:
        total = keep_top_k(total, k)
    return Reduced(total, [np.intersect1d(block.indices, total.indices) for block in blocks])


def hierarchical(
    accumulated: Sequence[ArrayLike],
    segments: Sequence[int],
    ks: Sequence[int],
    local_size: int,
    slack: float = 1.0,
) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
    """Sums each node's residuals, and runs `gtopk` of `top_k` on each shard between the nodes.

    Local rank j owns the entries [j d / L, (j + 1) d / L). It adds up what its node has there,
    beginning with its own, then that of the local ranks below it, around the node; of the part of
    each segment there it selects as large a share as the part is, rounded up.

    Args:
        accumulated: For each rank, residual + gradient; float32, flat.
        segments: Entries of each unit of selection.
        ks: Entries asked for in each of them.
        local_size: Ranks on a node; rank r is on node r // local_size.
        slack: Of `gtopk`.

    Returns:
        The dense sum that all ranks apply, and the residual of each rank.
    """
    arrays = [np.asarray(array, dtype=np.float32).ravel() for array in accumulated]
    size, numel = len(arrays), arrays[0].size
    applied = np.zeros(numel, dtype=np.float32)
    residuals: list[NDArray[np.float32]]
    residuals = [np.zeros(numel, dtype=np.float32) for _ in arrays]
    for local_rank in range(local_size):
        begin, end = (numel * j // local_size for j in (local_rank, local_rank + 1))
        owners = range(local_rank, size, local_size)
        shards: list[NDArray[np.float32]] = []
        blocks: list[list[Block]] = []
        for owner in owners:
            first = owner - local_rank
            total = np.zeros(end - begin, dtype=np.float32)
            for distance in range(local_size):
                total += arrays[first + (local_rank - distance) % local_size][begin:end]
            shards.append(total)
            blocks.append([])
        asked, offset = 0, 0
        for segment, k in zip(segments, ks, strict=True):
            low, high = max(begin, offset), min(end, offset + segment)
            if low < high:
                share = -(-k * (high - low) // segment)
                asked += share
                for shard, parts in zip(shards, blocks, strict=True):
                    part = top_k(shard[low - begin : high - begin], share)
                    parts.append(Block(part.indices + (low - begin), part.values))
            offset += segment
        joined = [
            Block(
                np.concatenate([np.zeros(0, np.int64), *(part.indices for part in parts)]),
                np.concatenate([np.zeros(0, np.float32), *(part.values for part in parts)]),
            )
            for parts in blocks
        ]
        reduced = gtopk(joined, asked, slack)
        applied[begin:end] = to_dense(reduced.block, end - begin)
        for owner, shard, delivered in zip(owners, shards, reduced.delivered, strict=True):
            residuals[owner][begin:end] = settle(shard, delivered)
    return applied, residuals


def settle(residual: ArrayLike, delivered: NDArray[np.int64]) -> NDArray[np.float32]:
    """A copy of the residual from which the delivered entries have left."""
    rest = np.array(residual, dtype=np.float32).ravel()
    rest[delivered] = 0
    return rest


def _largest(values: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Ascending places of the `k` largest magnitudes; a stable sort puts lower places first."""
    order = np.argsort(-np.abs(values), kind="stable")
    return np.sort(order[:k]).astype(np.int64)
