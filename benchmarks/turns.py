"""Runs selection methods, and a rank's whole local step, in turn in one process.

A step works on all layers of a model: one of 25.6 million entries, or 25 of a million each, with a
residual, a state and a block of its own for each, so that no residual is still in the cache from
the last step. In each step all contenders run:

* Their order is shuffled. Published ones are slow, and leave large temporaries in the cache, so
  they run in one step of several.
* Each gradient is a random window into a pool of twice as many Laplace numbers, and is read from
  memory. Repeated gradients would make residuals that do not occur in training.
* All residuals (and gradients that are written) are slabs of the same kind. The location of their
  pages changes times by 10 %, so every 30 steps all contents move on to the next slab.
* Residuals begin in the state in which exact top-k leaves them after some steps, and 64 untimed
  steps follow for the thresholds. hard_threshold has the threshold of the steady state: a random
  walk with steps of variance 1 leaves [-t, t] after t^2 steps, which should be 1 / density.
* Before each turn the process sleeps for some milliseconds: threads of torch's pool keep spinning
  after their last work, and would take the processor from the next contender.

Multiples are of mean times, so rare slow steps (refreshes, missed thresholds) count in full; the
99th percentile is a multiple of the floor's mean. Outside the timing, results are verified in every
fifth step (entries, order, values, and that nothing is lost), Sparsifier.bounds in each.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from itertools import pairwise

import torch
from contenders import (
    ALIGNMENT,
    AddAndZero,
    Contender,
    Core,
    LocalStep,
    Published,
    Selecting,
    Size,
    WithMomentum,
)
from published import PUBLISHED, exact_top_k
from reporting import Row, Timing

from hvd_sparse.compression.sparsifiers import SPARSIFIERS, HardThreshold, as_sparsifier

ADD, ADD_AND_ZERO = "residual.add_(gradient)", "residual.add_(gradient); gradient.zero_()"
SETTLING = 64  # steps in which thresholds settle: two refreshes of `gaussian`
SWAP_EVERY = 30  # steps
CHECK_EVERY = 5  # steps


class Gradients:
    """A source of gradients that do not repeat: Laplace entries of variance 1."""

    def __init__(self, size: Size) -> None:
        self._size = size
        entries = 2 * size.layers * size.numel + ALIGNMENT
        # A Laplace variable is a normal one with an exponential variance.
        self._pool = torch.randn(entries, device=size.device)
        self._pool.mul_(torch.empty(entries, device=size.device).exponential_().sqrt_())

    def draw(self) -> list[torch.Tensor]:
        """Returns one gradient for each layer."""
        numel = self._size.numel
        starts = (len(self._pool) - numel) // ALIGNMENT
        offsets = [ALIGNMENT * random.randrange(starts + 1) for _ in range(self._size.layers)]
        return [self._pool[offset : offset + numel] for offset in offsets]


class Memory:
    """Slabs of memory that rotate among the contenders."""

    def __init__(self, contenders: Sequence[Contender], size: Size) -> None:
        self._contenders = contenders
        self._slabs = [size.slab() for one in contenders for _ in range(one.slabs_needed)]
        self._hand_out()

    def move_on(self) -> None:
        """Moves each slab's contents to the slab before."""
        first = self._slabs[0].clone()
        for into, out_of in pairwise(self._slabs):
            into.copy_(out_of)
        self._slabs[-1].copy_(first)
        self._slabs.insert(0, self._slabs.pop())
        self._hand_out()

    def _hand_out(self) -> None:
        slabs = iter(self._slabs)
        for one in self._contenders:
            one.slabs = [next(slabs) for _ in range(one.slabs_needed)]


def exact_warm_up(size: Size, gradients: Gradients, steps: int) -> torch.Tensor:
    """Returns the residuals that exact top-k leaves after some steps."""
    top_k = Core(as_sparsifier("top_k"), size)
    top_k.slabs = [size.slab()]
    for _ in range(steps):
        top_k.run(gradients.draw())
    return top_k.slabs[0]


def lineup(size: Size) -> list[Contender]:
    """Returns all contenders."""
    sparsifiers = [as_sparsifier(name) for name in SPARSIFIERS if name != HardThreshold.name]
    sparsifiers.append(HardThreshold(threshold=size.density**-0.5))
    return [
        Contender(ADD, size),
        *(Core(sparsifier, size) for sparsifier in sparsifiers),
        *([WithMomentum(as_sparsifier("gaussian"), size)] if size.device == "cpu" else []),
        *(Published(name, method, size) for name, method in PUBLISHED.items()),
        AddAndZero(ADD_AND_ZERO, size),
        LocalStep(as_sparsifier("gaussian"), size, name="local step with gaussian"),
    ]


class Turns:
    """Runs the contenders, step by step."""

    def __init__(
        self, contenders: list[Contender], gradients: Gradients, memory: Memory, slow_every: int
    ) -> None:
        self._contenders = contenders
        self._gradients = gradients
        self._memory = memory
        self._slow_every = slow_every

    def take(self, steps: int, pause: float) -> list[Row]:
        """Runs all contenders; returns a row for each.

        Args:
            steps: Number of steps.
            pause: Seconds of sleep before each turn.
        """
        seconds: dict[str, list[float]] = {one.name: [] for one in self._contenders}
        counts: dict[str, list[int]] = {one.name: [] for one in self._contenders}
        for step in range(steps):
            if step % SWAP_EVERY == 0:
                self._memory.move_on()
            for one in random.sample(self._contenders, len(self._contenders)):
                if isinstance(one, Published) and step % self._slow_every:
                    continue
                check = step % CHECK_EVERY == 0
                took = one.run(self._gradients.draw(), pause=pause, check=check)
                seconds[one.name].append(took)
                counts[one.name] += one.counts()
        return self._rows(seconds, counts)

    def settle(self, steps: int) -> None:
        """Takes untimed steps in which thresholds settle."""
        for _ in range(steps):
            for one in self._contenders:
                if not isinstance(one, Published):  # these have no state
                    one.run(self._gradients.draw())

    def _rows(self, seconds: dict[str, list[float]], counts: dict[str, list[int]]) -> list[Row]:
        timings = {name: Timing.of(all_) for name, all_ in seconds.items()}
        exact = next(name for name, method in PUBLISHED.items() if method is exact_top_k)
        rows = []
        for one in self._contenders:
            timing = timings[one.name]
            whole = isinstance(one, AddAndZero | LocalStep)
            floor = timings[ADD_AND_ZERO if whole else ADD].mean
            facts: dict[str, float | int | str] = {
                "steps": timing.repetitions,
                "mean ms": timing.mean,
                "x floor": timing.mean / floor,
                "99th %": timing.p99 / floor,
            }
            if not whole:
                facts["x topk"] = timing.mean / timings[exact].mean
            if isinstance(one, Selecting):
                ratios = [count / one.size.k for count in counts[one.name]]
                facts |= {"count/k, least": min(ratios), "mean": statistics.fmean(ratios)}
                facts["most"] = max(ratios)
                one.verified &= all(one.is_bounded(n, one.size.numel) for n in counts[one.name])
            rows.append(Row(one.name, timing, facts))
        return rows
