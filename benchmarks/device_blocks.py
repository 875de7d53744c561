"""Times a step's work on blocks that stay on a GPU, with CUDA's events on torch's stream.

Each piece is launched several times in a row between two events, so that the device's work is
timed, with its launches, and not Python's speed of launching. Ours and torch's pieces take turns;
merges and top-k repeat the same work.
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

from hvd_sparse import _core, _core_testing

IN_A_ROW = 8  # launches of a piece between two events
WARM_UP = 5
MERGE_LIMIT_US = 25.0  # aim for merge and top-k of two blocks of 25,600
PAIRS = 8  # of blocks, in rotation


@dataclass(frozen=True)
class Piece:
    """A piece of work to time.

    Attributes:
        name: Name in the table.
        enqueue: Launches the work on the current stream.
        bytes_moved: Bytes that it must read and write in memory; 0 if that is of no interest.
    """

    name: str
    enqueue: Callable[[], object]
    bytes_moved: int = 0


def seconds_of(piece: Piece, device: str) -> float:
    """Returns the device's seconds of one of IN_A_ROW launches, by its events."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(IN_A_ROW):
            piece.enqueue()
        return (time.perf_counter() - start) / IN_A_ROW
    with torch.cuda.device(device):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(IN_A_ROW):
            piece.enqueue()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / IN_A_ROW


def time_all(pieces: list[Piece], device: str, steps: int) -> dict[str, Timing]:
    """Times the pieces in turn, in shuffled order."""
    seconds: dict[str, list[float]] = {piece.name: [] for piece in pieces}
    for step in range(WARM_UP + steps):
        for piece in random.sample(pieces, len(pieces)):
            took = seconds_of(piece, device)
            if step >= WARM_UP:
                seconds[piece.name].append(took)
    return {name: Timing.of(all_) for name, all_ in seconds.items()}


def measure_merge(block: int, numel: int, device: str, steps: int) -> tuple[list[Row], bool]:
    """Times merging two blocks and keeping the largest entries, beside torch.topk of equal size.

    Several pairs take turns. The result of each is checked before the first step, and after the
    last.

    Args:
        block: Number of entries of each block.
        numel: Number of entries of the gradient that they belong to.
        device: Such as "cuda:0", or "cpu".
        steps: Number of timed steps.
    """
    generator = np.random.default_rng(1)
    pairs = [Pair.drawn(block, numel, generator) for _ in range(PAIRS)]
    merges = [Merge(pair, block, device) for pair in pairs]
    values = [torch.from_numpy(pair.union.values).to(device) for pair in pairs]
    names = "merge and top-k", f"torch.topk of {len(values[0]):,} values"
    merging, sorting = cycle(merges), cycle(values)
    pieces = [
        Piece(names[0], lambda: next(merging).enqueue()),
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
    """Merges a pair of blocks, on the CPU or on a device's current stream."""

    def __init__(self, pair: Pair, k: int, device: str) -> None:
        self._pair, self._k, self._device = pair, k, device
        self._own, self._theirs = (
            _core.Block(one.indices, one.values) for one in (pair.own, pair.theirs)
        )
        self._out = _core.Block([], [])
        self._work = None
        if device != "cpu":
            self._work = _core_testing.merge_work(self._own, self._theirs, k=k, device=device)

    def enqueue(self) -> None:
        """Launches the work on the stream, or does it on the CPU."""
        if self._work is not None:
            self._work.enqueue(torch.cuda.current_stream(self._device).cuda_stream)
            return
        _core.merge(self._own, self._theirs, self._out)
        _core.keep_top_k(self._out, self._k)

    def is_right(self) -> bool:
        """Merges, and returns true if the result is the k largest entries of the sum."""
        self.enqueue()
        return holds(self._out if self._work is None else self._work.wait(), self._pair.kept)
