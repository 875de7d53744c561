"""Memory that takes turns in side_by_side.py, and this package's selection on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import cycle

import numpy as np
import torch
from contenders import SURVIVED, buffer, is_right

from hvd_sparse import _core


class Memory:
    """One set, and what is right for it.

    Attributes:
        gradients: The gradient and its negative.
        residuals: Two, zero at first: of the pass, and of whole selections.
        copied: As large.
        threshold: What exactly the k largest exceed.
        places: int64, in order: where these lie.
    """

    def __init__(self, numel: int, density: float, device: str) -> None:
        gradient = torch.randn(numel, device=device)
        self.gradients = (gradient, -gradient)
        self.residuals = tuple(torch.zeros(numel, device=device) for _ in range(2))
        self.copied = torch.empty_like(gradient)
        magnitudes = gradient.abs()
        # Where equal magnitudes lie at the border, none of them exceeds it.
        border = max(2, math.ceil(numel * density) + 1)
        self.threshold = float(torch.topk(magnitudes, border).values[-1])
        self.places = (magnitudes > self.threshold).nonzero().squeeze(1)

    @property
    def k(self) -> int:
        """How many are to be taken."""
        return len(self.places)

    def holds(self, places: torch.Tensor) -> bool:
        """Whether these, in any order, are the k largest."""
        return torch.equal(places.to(self.places.device).sort().values, self.places)

    def holds_largest(self, places: torch.Tensor) -> bool:
        """Whether these are the largest, however many."""
        rest = self.gradients[0].abs()
        least = rest[places].min()
        rest[places] = 0
        return bool(least >= rest.max()) and len(places.unique()) == len(places)


class OnCpuWork:
    """What stands in on the CPU for work that is given to a stream."""

    def __init__(
        self, sparsifier: str, options: dict[str, float], memory: Memory, sign: int, kept: int
    ) -> None:
        numel = memory.copied.numel()
        self._selector = _core.Selector(sparsifier, options, numel=numel, k=memory.k)
        self._gradient, self._residual = memory.gradients[sign], memory.residuals[kept]
        self._state = torch.zeros(4)

    def give(self, _: int) -> None:
        """Does it at once."""
        self._selector.select(
            buffer(self._gradient),
            decay=1.0,
            scale=1.0,
            residual=buffer(self._residual),
            state=buffer(self._state),
        )

    def fetch(self) -> _core.Block:
        """What was taken last."""
        return self._selector.block


Work = OnCpuWork | _core.StreamWork


def pass_work(memory: Memory, sign: int, device: str) -> Work:
    """Error feedback and taking what exceeds the threshold, in one pass."""
    if device == "cpu":
        return OnCpuWork("hard_threshold", {"threshold": memory.threshold}, memory, sign, 0)
    return _core.pass_work(
        buffer(memory.gradients[sign]),
        buffer(memory.residuals[0]),
        threshold=memory.threshold,
        k=memory.k,
        device=device,
    )


def select_work(memory: Memory, sign: int, device: str) -> Work:
    """A whole selection, which finds its threshold."""
    if device == "cpu":
        return OnCpuWork("top_k", {}, memory, sign, 1)
    gradient, residual = buffer(memory.gradients[sign]), buffer(memory.residuals[1])
    return _core.select_work(gradient, residual, k=memory.k, device=device)


class Ours:
    """Work of the package's on one set; gradient and negative by turns.

    Args:
        make: `pass_work` or `select_work`.
        memory: The set.
        device: Where it lies.
        kept: Which of the residuals is changed.
    """

    def __init__(
        self,
        make: Callable[[Memory, int, str], Work],
        memory: Memory,
        device: str,
        *,
        kept: int,
    ) -> None:
        self._memory, self._device = memory, device
        self._residual = memory.residuals[kept]
        self._works = [make(memory, sign, device) for sign in range(2)]
        self._signs = cycle(range(2))

    def give(self) -> None:
        """Gives the current stream the work."""
        self._works[next(self._signs)].give(stream_of(self._device))

    def check(self) -> bool:
        """Whether nothing is lost and the largest are taken, twice."""
        right = True
        for _ in range(2):
            sign = next(self._signs)
            expected = self._residual + self._memory.gradients[sign]
            self._works[sign].give(stream_of(self._device))
            _finish(self._device)
            block = self._works[sign].fetch()
            places = torch.from_numpy((block.indices() & ~SURVIVED).astype(np.int64))
            right &= 0 < len(places) <= self._memory.k
            right &= is_right(
                expected,
                self._residual,
                places.to(self._device),
                torch.from_numpy(block.values().copy()).to(self._device),
                largest=True,
            )
        return right


def stream_of(device: str) -> int:
    return 0 if device == "cpu" else int(torch.cuda.current_stream(device).cuda_stream)


def _finish(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)
