"""Sets of memory that take turns in side_by_side.py, and this package's selection on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import cycle

import numpy as np
import torch
from contenders import SURVIVED, buffer, is_right

from hvd_sparse import _core, _core_testing


class Memory:
    """One set of memory, and the right result for it.

    Attributes:
        gradients: The gradient and its negative.
        residuals: Two residuals, zero at first: one for the pass, one for whole selections.
        copied: Destination of a copy, of the same size.
        threshold: Threshold that exactly k entries exceed.
        indices: Their positions, int64, in order.
    """

    def __init__(self, numel: int, density: float, device: str) -> None:
        gradient = torch.randn(numel, device=device)
        self.gradients = (gradient, -gradient)
        self.residuals = tuple(torch.zeros(numel, device=device) for _ in range(2))
        self.copied = torch.empty_like(gradient)
        magnitudes = gradient.abs()
        # If equal magnitudes lie at the border, none of them exceeds it.
        border = max(2, math.ceil(numel * density) + 1)
        self.threshold = float(torch.topk(magnitudes, border).values[-1])
        self.indices = (magnitudes > self.threshold).nonzero().squeeze(1)

    @property
    def k(self) -> int:
        """Number of entries to select."""
        return len(self.indices)

    def holds(self, indices: torch.Tensor) -> bool:
        """Returns true if these positions, in any order, are those of the k largest."""
        return torch.equal(indices.to(self.indices.device).sort().values, self.indices)

    def holds_largest(self, indices: torch.Tensor) -> bool:
        """Returns true if these positions are those of the largest entries, however many."""
        rest = self.gradients[0].abs()
        least = rest[indices].min()
        rest[indices] = 0
        return bool(least >= rest.max()) and len(indices.unique()) == len(indices)


class Work:
    """Error feedback and selection, which waits until the block is in memory of the CPU."""

    def __init__(
        self, sparsifier: str, options: dict[str, float], memory: Memory, sign: int, kept: int
    ) -> None:
        self._gradient, self._residual = memory.gradients[sign], memory.residuals[kept]
        self._selector = _core_testing.Selector(
            sparsifier,
            options,
            numel=self._gradient.numel(),
            k=memory.k,
            device=str(self._gradient.device),
        )
        self._state = torch.zeros(4)

    def run(self) -> _core.Block:
        """Selects, and returns the selection."""
        self._selector.select(
            buffer(self._gradient),
            decay=1.0,
            scale=1.0,
            residual=buffer(self._residual),
            state=buffer(self._state),
        )
        return self._selector.block


def pass_work(memory: Memory, sign: int) -> Work:
    """Returns error feedback and selection by the known threshold, in one pass."""
    return Work("hard_threshold", {"threshold": memory.threshold}, memory, sign, 0)


def select_work(memory: Memory, sign: int) -> Work:
    """Returns a whole selection, which finds its threshold."""
    return Work("top_k", {}, memory, sign, 1)


class Ours:
    """Work of this package on one set; gradient and negative take turns.

    Args:
        make: `pass_work` or `select_work`.
        memory: The set.
        kept: Index of the residual that is changed.
    """

    def __init__(
        self,
        make: Callable[[Memory, int], Work],
        memory: Memory,
        *,
        kept: int,
    ) -> None:
        self._memory = memory
        self._residual = memory.residuals[kept]
        self._works = [make(memory, sign) for sign in range(2)]
        self._signs = cycle(range(2))

    def run(self) -> None:
        """Does the work, of the gradient and its negative in turn."""
        self._works[next(self._signs)].run()

    def check(self) -> bool:
        """Runs twice; returns true if nothing is lost and the largest entries are selected."""
        right = True
        for _ in range(2):
            sign = next(self._signs)
            expected = self._residual + self._memory.gradients[sign]
            _finish(self._residual.device)
            block = self._works[sign].run()
            indices = torch.from_numpy((block.indices() & ~SURVIVED).astype(np.int64))
            right &= 0 < len(indices) <= self._memory.k
            right &= is_right(
                expected,
                self._residual,
                indices.to(self._residual.device),
                torch.from_numpy(block.values().copy()).to(self._residual.device),
                largest=True,
            )
        return right


def stream_of(device: str) -> int:
    return 0 if device == "cpu" else int(torch.cuda.current_stream(device).cuda_stream)


def _finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.cuda.synchronize(device)
