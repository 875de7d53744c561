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


def shard_topk(
    accumulated: Sequence[ArrayLike],
    segments: Sequence[int],
    ks: Sequence[int],
    sums: float = 12,
) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
    """Sends each rank's `top_k` to the owners of shards, and the owners' largest sums to all.

    Rank j owns the entries [j d / P, (j + 1) d / P), and selects outside of them: of each segment
    in proportion to the part there, rounded up. What arrives joins the owner's residual. From there
    it takes, of each segment, `sums` times the mean number of entries that the others sent, and one
    at least. A single rank takes its `top_k`.

    Args:
        accumulated: For each rank, residual + gradient; float32, flat.
        segments: Number of entries of each unit of selection.
        ks: Number of entries asked for in each unit.
        sums: Of the sums, this factor times k are sent on.

    Returns:
        The dense sum that all ranks apply, and the residual of each rank.
    """
    residuals = [np.array(array, dtype=np.float32).ravel() for array in accumulated]
    size, numel = len(residuals), residuals[0].size
    shards = [(numel * j // size, numel * (j + 1) // size) for j in range(size)]
    if size == 1:
        shards = [(numel, numel)]
    parts: list[list[list[Block]]] = []  # by rank and segment, on either side of its shard
    for residual, (begin, end) in zip(residuals, shards, strict=True):
        parts.append([])
        offset = 0
        for segment, k in zip(segments, ks, strict=True):
            parts[-1].append([])
            for low, high in (
                (offset, min(offset + segment, begin)),
                (max(offset, end), offset + segment),
            ):
                if low < high:
                    found = top_k(residual[low:high], -(-k * (high - low) // segment))
                    parts[-1][-1].append(Block(found.indices + low, found.values))
            offset += segment
    blocks = [_joined([one for of_segment in rank for one in of_segment]) for rank in parts]
    for residual, block in zip(residuals, blocks, strict=True):
        residual[block.indices] = 0
    if size == 1:
        return to_dense(blocks[0], numel), residuals
    applied = np.zeros(numel, dtype=np.float32)
    total = allgather(blocks).block
    for owner, (begin, end) in enumerate(shards):
        own = (begin <= total.indices) & (total.indices < end)
        residuals[owner][total.indices[own]] += total.values[own]
        offset = 0
        for segment in segments:
            low, high = max(begin, offset), min(end, offset + segment)
            offset += segment
            if low >= high:
                continue
            arrived = sum(int(((low <= b.indices) & (b.indices < high)).sum()) for b in blocks)
            quota = max(1, math.ceil(sums * arrived / (size - 1)))
            taken = top_k(residuals[owner][low:high], quota)
            applied[taken.indices + low] = taken.values
            residuals[owner][taken.indices + low] = 0
    return applied, residuals


def nodes_first(
    accumulated: Sequence[ArrayLike],
    segments: Sequence[int],
    ks: Sequence[int],
    local_size: int,
    collective: Callable[[Sequence[Block], int], Reduced],
) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
    """Sums each node's residuals, and exchanges `top_k` of each shard between the nodes.

    Local rank j owns the entries [j d / L, (j + 1) d / L). It sums its node's values there,
    beginning with its own, then those of the local ranks below it, around the node. Of each segment
    it selects entries in proportion to the part that it owns, rounded up.

    Args:
        accumulated: For each rank, residual + gradient; float32, flat.
        segments: Number of entries of each unit of selection.
        ks: Number of entries asked for in each unit.
        local_size: Ranks on a node; rank r is on node r // local_size.
        collective: The exchange, one of `COLLECTIVES`.

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
        joined = [_joined(parts) for parts in blocks]
        reduced = collective(joined, asked)
        applied[begin:end] = to_dense(reduced.block, end - begin)
        for owner, shard, delivered in zip(owners, shards, reduced.delivered, strict=True):
            residuals[owner][begin:end] = settle(shard, delivered)
    return applied, residuals


def settle(residual: ArrayLike, delivered: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns a copy of the residual with zeros at the delivered entries."""
    rest = np.array(residual, dtype=np.float32).ravel()
    rest[delivered] = 0
    return rest


def _joined(parts: Sequence[Block]) -> Block:
    """Returns the entries of blocks that follow each other."""
    return Block(
        np.concatenate([np.zeros(0, np.int64), *(part.indices for part in parts)]),
        np.concatenate([np.zeros(0, np.float32), *(part.values for part in parts)]),
    )


def _largest(values: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Returns the ascending positions of the `k` largest magnitudes; ties go to the lower one."""
    order = np.argsort(-np.abs(values), kind="stable")
    return np.sort(order[:k]).astype(np.int64)


# Each collective by name that sums blocks alone, without regard to residuals: their sum, given k.
COLLECTIVES: dict[str, Callable[[Sequence[Block], int], Reduced]] = {
    "allgather": lambda blocks, _: allgather(blocks),
    "gtopk": gtopk,
    "recursive_doubling": lambda blocks, _: recursive_doubling(blocks),
}


def sum_of(collective: str, accumulated: Sequence[ArrayLike], k: int) -> NDArray[np.float32]:
    """Returns the dense sum that a collective applies, if each rank selects its `top_k`.

    Args:
        collective: Name of the collective.
        accumulated: For each rank, residual + gradient; float32, flat, one unit of selection.
        k: Number of entries asked for.
    """
    arrays = [np.asarray(array, dtype=np.float32).ravel() for array in accumulated]
    if collective == "shard_topk":
        return shard_topk(arrays, [arrays[0].size], [k])[0]
    blocks = [top_k(array, k) for array in arrays]
    return COLLECTIVES[collective](blocks, k).block.to_dense(arrays[0].size)
