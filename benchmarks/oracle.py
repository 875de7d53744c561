"""The oracle: selection and collectives in plain NumPy, written without looking at the C++ code.

It is slow and clear; tests compare the core with it, and nothing else uses it. All ranks live in
one process: a rank's message is an element of a list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
        """Returns the flat array of `numel` entries that holds this block, and zeros elsewhere."""
        return to_dense(self, numel)


class Reduced(NamedTuple):
    """Result of a collective.

    Attributes:
        block: The sum that every rank holds.
        delivered: For each rank, the ascending indices of its own selected entries that are part
            of the sum. They leave its residual; all its other entries stay there.
    """

    block: Block
    delivered: list[NDArray[np.int64]]


def to_dense(block: Block, numel: int) -> NDArray[np.float32]:
    """Returns the flat array of `numel` entries that holds `block`, and zeros elsewhere."""
    dense = np.zeros(numel, dtype=np.float32)
    dense[block.indices] = block.values
    return dense


def top_k(u: ArrayLike, k: int) -> Block:
    """Returns the `k` largest magnitudes of a flat array; ties go to the lower index.

    Zeros and NaN are never selected, so there may be fewer than `k` entries.
    """
    dense = np.asarray(u, dtype=np.float32).ravel()
    candidates = np.flatnonzero(np.abs(dense) > 0)  # False for NaN
    return keep_top_k(Block(candidates.astype(np.int64), dense[candidates]), k)


def keep_top_k(block: Block, k: int) -> Block:
    """Returns the `k` largest magnitudes of a block, zeros included; ties go to the lower index."""
    largest = _largest(block.values, k)
    return Block(block.indices[largest], block.values[largest])


def merge(a: Block, b: Block) -> Block:
    """Returns the union of two blocks; values at equal indices are added in float32."""
    indices = np.union1d(a.indices, b.indices)
    values = np.zeros((2, indices.size), dtype=np.float32)
    held = np.zeros((2, indices.size), dtype=np.bool_)
    for row, block in enumerate((a, b)):
        positions = np.searchsorted(indices, block.indices)
        values[row, positions] = block.values
        held[row, positions] = True
    total = np.where(
        held[0] & held[1], values[0] + values[1], np.where(held[0], values[0], values[1])
    )
    return Block(indices, total)


def top_k_merge(a: Block, b: Block, k: int) -> Block:
    """gTop-k's operator: returns the `k` largest magnitudes of `merge(a, b)`."""
    return keep_top_k(merge(a, b), k)


def allgather(blocks: Sequence[Block]) -> Reduced:
    """Sums all blocks in rank order; everything is delivered.

    Args:
        blocks: The selected block of each rank; their sizes may differ.
    """
    total = blocks[0]
    for block in blocks[1:]:
        total = merge(total, block)
    return Reduced(total, [block.indices for block in blocks])


def gtopk(blocks: Sequence[Block], k: int, slack: float = 1.0) -> Reduced:
    """Runs gTop-k over any number of ranks: recursive doubling with a bounded merge.

    The largest power of two of ranks form the core. A rank beyond it is the guest of the core rank
    that many ranks below: its block is merged into that rank's before the rounds. An entry is
    delivered if it stays in the core rank's running block through all rounds.

    Args:
        blocks: The selected block of each rank; only its `k` largest entries are sent.
        k: Number of entries kept by the last merge.
        slack: The earlier merges keep `slack` times as many, rounded up.

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
    """Sums all blocks along a hypercube; everything is delivered.

    Guests join their hosts as in `gtopk`, and no entry is dropped.

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
    """Keeps the `k` largest entries of the sum; ranks' entries at those indices are delivered.

    Args:
        blocks: The selected block of each rank; their sizes may differ.
        k: Number of entries of the sum that are kept; a single rank keeps all.

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

    Local rank j owns the entries [j d / L, (j + 1) d / L). It sums its node's values there,
    beginning with its own, then those of the local ranks below it, around the node. Of each segment
    it selects entries in proportion to the part that it owns, rounded up.

    Args:
        accumulated: For each rank, residual + gradient; float32, flat.
        segments: Number of entries of each unit of selection.
        ks: Number of entries asked for in each unit.
        local_size: Ranks on a node; rank r is on node r // local_size.
        slack: Slack of `gtopk`.

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
    """Returns a copy of the residual with zeros at the delivered entries."""
    rest = np.array(residual, dtype=np.float32).ravel()
    rest[delivered] = 0
    return rest


def _largest(values: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Returns the ascending positions of the `k` largest magnitudes; ties go to the lower one."""
    order = np.argsort(-np.abs(values), kind="stable")
    return np.sort(order[:k]).astype(np.int64)


# Each collective by name: the sum of the ranks' blocks, given k. Hierarchical stands here for ranks
# that are nodes of their own: gtopk.
COLLECTIVES: dict[str, Callable[[Sequence[Block], int], Reduced]] = {
    "allgather": lambda blocks, _: allgather(blocks),
    "gtopk": gtopk,
    "hierarchical": gtopk,
    "recursive_doubling": lambda blocks, _: recursive_doubling(blocks),
    "split_allgather": split_allgather,
}
