"""Times what a step does to blocks that stay on a GPU, with CUDA's events on torch's stream.

Each piece is given to the stream several times in a row between two events, so that what is timed
is the device's work, with its launches, and not how fast Python asks for it. Ours and torch's take
turns; merges and top-k repeat the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import torch
from blocks import Pair, holds
from reporting import Row, Timing

from hvd_sparse import _core

IN_A_ROW = 8  # times a piece is given to the stream between two events
WARM_UP = 5
MERGE_LIMIT_US = 25.0  # aim for merge and top-k of two blocks of 25,600
PAIRS = 8  # of blocks, in rotation


@dataclass(frozen=True)
class Piece:
    """What is timed.

    Attributes:
        name: In the table.
        give: Gives the current stream its work.
        bytes_moved: That memory must read and write for it; 0 where that says nothing.
    """

    name: str
    give: Callable[[], object]
    bytes_moved: int = 0


def seconds_of(piece: Piece, device: str) -> float:
    """What one of IN_A_ROW takes the device, by its events."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(IN_A_ROW):
            piece.give()
        return (time.perf_counter() - start) / IN_A_ROW
    with torch.cuda.device(device):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(IN_A_ROW):
            piece.give()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / IN_A_ROW


def time_all(pieces: list[Piece], device: str, steps: int) -> dict[str, Timing]:
    """Lets the pieces take turns, in shuffled order."""
    seconds: dict[str, list[float]] = {piece.name: [] for piece in pieces}
    for step in range(WARM_UP + steps):
        for piece in random.sample(pieces, len(pieces)):
            took = seconds_of(piece, device)
            if step >= WARM_UP:
                seconds[piece.name].append(took)
    return {name: Timing.of(all_) for name, all_ in seconds.items()}


def measure_merge(block: int, numel: int, device: str, steps: int) -> tuple[list[Row], bool]:
    """Merging two blocks and keeping the largest entries, beside torch.topk of as many values.

    Some pairs take turns. What came of each is looked at before the first step, and after the last.

    Args:
        block: Entries of each block.
        numel: Entries of the gradient that they belong to.
        device: Such as "cuda:0", or "cpu".
        steps: Timed.
    """
    generator = np.random.default_rng(1)
    pairs = [Pair.drawn(block, numel, generator) for _ in range(PAIRS)]
    merges = [Merge(pair, block, device) for pair in pairs]
    values = [torch.from_numpy(pair.union.values).to(device) for pair in pairs]
    names = "merge and top-k", f"torch.topk of {len(values[0]):,} values"
    merging, sorting = cycle(merges), cycle(values)
    pieces = [
        Piece(names[0], lambda: next(merging).give()),
        Piece(names[1], lambda: torch.topk(next(sorting).abs(), block)),
    ]
    verified = all(merge.is_right() for merge in merges)
    timings = time_all(pieces, device, steps)
    verified &= all(merge.is_right() for merge in merges)
    aims = ("" if device == "cpu" else MERGE_LIMIT_US, "")
    rows = [
        Row(name, timings[name], {"us": 1e3 * timings[name].median, "aim, us": aim})
        for name, aim in zip(names, aims, strict=True)
    ]
    return rows, verified


class Merge:
    """Merging a pair of blocks, on the CPU or on a device's current stream."""

    def __init__(self, pair: Pair, k: int, device: str) -> None:
        self._pair, self._k, self._device = pair, k, device
        self._own, self._theirs = (
            _core.Block(one.indices, one.values) for one in (pair.own, pair.theirs)
        )
        self._out = _core.Block([], [])
        self._work = None
        if device != "cpu":
            self._work = _core.merge_work(self._own, self._theirs, k=k, device=device)

    def give(self) -> None:
        """Gives the work, or does it."""
        if self._work is not None:
            self._work.give(torch.cuda.current_stream(self._device).cuda_stream)
            return
        _core.merge(self._own, self._theirs, self._out)
        _core.keep_top_k(self._out, self._k)

    def is_right(self) -> bool:
        """Whether the k largest of the sum come of it."""
        self.give()
        return holds(self._out if self._work is None else self._work.fetch(), self._pair.kept)
