"""Times operations on blocks: merging, trimming, settling and scattering."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import oracle
import torch
from contenders import SURVIVED, buffer
from reporting import Row, Timing

from hvd_sparse import _core, _core_testing

PAIRS = 16  # of blocks, in rotation


@dataclass(frozen=True)
class Pair:
    """Two blocks of k entries that have half of their indices in common.

    Attributes:
        own: The first block.
        theirs: The second block.
        union: Sum of both.
        kept: The k largest entries of the sum.
        total: `theirs`, with the survived bit set on the entries that it shares with `own`, which
            count as delivered.
        common: Mask of these entries in `own`.
    """

    own: oracle.Block
    theirs: oracle.Block
    union: oracle.Block
    kept: oracle.Block
    total: _core.Block
    common: np.ndarray

    @classmethod
    def drawn(cls, k: int, numel: int, generator: np.random.Generator) -> Pair:
        drawn = generator.choice(numel, size=2 * k - k // 2, replace=False)
        own, theirs = (
            oracle.Block(np.sort(indices), generator.laplace(size=k).astype(np.float32))
            for indices in (drawn[:k], drawn[-k:])
        )
        union = oracle.merge(own, theirs)
        shared = np.isin(theirs.indices, own.indices)
        marked = np.where(shared, theirs.indices.astype(np.int32) | SURVIVED, theirs.indices)
        return cls(
            own,
            theirs,
            union,
            oracle.keep_top_k(union, k),
            _core.Block(marked.astype(np.int32), theirs.values),
            np.isin(own.indices, theirs.indices),
        )


class Blocks:
    """The operations; each yields (name, seconds, true if the result is right)."""

    def __init__(self, k: int, numel: int) -> None:
        generator = np.random.default_rng(1)
        self._k = k
        self._pairs = [Pair.drawn(k, numel, generator) for _ in range(PAIRS)]
        self._residual = torch.zeros(numel)
        self._gradients = [torch.ones(numel), torch.ones(numel)]  # rotated between operations
        self._union = _core.Block([], [])

    def step(self, number: int) -> Iterator[tuple[str, float, bool]]:
        """Runs all operations, in shuffled order."""
        pair = self._pairs[number % PAIRS]
        gradients = random.sample(self._gradients, 2)
        pieces = [
            self._merge(pair),
            self._settle(pair),
            self._scatter(pair, gradients[0]),
            self._zero(gradients[1]),
        ]
        random.shuffle(pieces)
        for piece in pieces:
            yield from piece

    def _merge(self, pair: Pair) -> Iterator[tuple[str, float, bool]]:
        own, theirs = (
            _core.Block(block.indices, block.values) for block in (pair.own, pair.theirs)
        )
        start = time.perf_counter()
        _core.merge(own, theirs, self._union)
        merged = time.perf_counter()
        yield "merge", merged - start, holds(self._union, pair.union)
        trim = time.perf_counter()
        _core.keep_top_k(self._union, self._k)
        done = time.perf_counter()
        right = holds(self._union, pair.kept)
        yield "keep_top_k of that", done - trim, right
        yield "merge and keep_top_k", merged - start + done - trim, right

    def _settle(self, pair: Pair) -> Iterator[tuple[str, float, bool]]:
        own = _core.Block(pair.own.indices, pair.own.values)
        rest = buffer(self._residual)
        start = time.perf_counter()
        _core_testing.settle(own, pair.total, rest)
        seconds = time.perf_counter() - start
        expected = np.where(pair.common, 0, pair.own.values)
        indices = torch.from_numpy(pair.own.indices)
        right = np.array_equal(self._residual[indices].numpy(), expected)
        self._residual[indices] = 0
        yield "settle", seconds, right and not self._residual.any()

    def _scatter(self, pair: Pair, gradient: torch.Tensor) -> Iterator[tuple[str, float, bool]]:
        block = _core.Block(pair.theirs.indices, pair.theirs.values)
        into, rest = buffer(gradient), buffer(self._residual)
        start = time.perf_counter()
        _core_testing.scatter(block, 0.25, into, rest)
        seconds = time.perf_counter() - start
        indices = torch.from_numpy(pair.theirs.indices)
        right = np.array_equal(gradient[indices].numpy(), pair.theirs.values / 4)
        right &= int(gradient.count_nonzero()) == np.count_nonzero(pair.theirs.values)
        yield "scatter", seconds, right

    def _zero(self, gradient: torch.Tensor) -> Iterator[tuple[str, float, bool]]:
        start = time.perf_counter()
        gradient.zero_()
        seconds = time.perf_counter() - start
        yield "gradient.zero_()", seconds, not gradient.any()


def holds(block: _core.Block, expected: oracle.Block) -> bool:
    """Returns true if the core's block has these entries, bit for bit."""
    return np.array_equal(block.indices(), expected.indices) and np.array_equal(
        block.values().view(np.int32), expected.values.view(np.int32)
    )


def measure_blocks(k: int, numel: int, *, steps: int) -> tuple[list[Row], bool]:
    """Returns rows of all operations, and true if all results were right.

    Args:
        k: Number of entries of each block.
        numel: Number of entries of the gradient that they belong to.
        steps: Number of timed steps, after as many untimed ones as there are pairs.
    """
    blocks = Blocks(k, numel)
    seconds: dict[str, list[float]] = {}
    verified = True
    for number in range(PAIRS + steps):
        for name, took, right in blocks.step(number):
            verified = verified and bool(right)
            if number >= PAIRS:
                seconds.setdefault(name, []).append(took)
    dense = ("scatter", "gradient.zero_()")
    rows = []
    for name in sorted(seconds):
        timing = Timing.of(seconds[name])
        entries, of = (numel, "gradient") if name in dense else (2 * k, "both blocks")
        facts = {
            "mean ms": timing.mean,
            "99th % ms": timing.p99,
            "ns per entry": 1e6 * timing.mean / entries,
            "entries of": of,
        }
        if name in dense:
            facts["GB/s"] = 4e-6 * numel / timing.mean
            facts["x zero_()"] = timing.mean / Timing.of(seconds[dense[1]]).mean
        rows.append(Row(name, timing, facts))
    return rows, verified
