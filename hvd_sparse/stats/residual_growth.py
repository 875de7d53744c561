"""Tells when a residual grows without bound: gradients come in faster than they are delivered.

The residual of a training in balance grows for as long as an entry waits, and then stays: what
comes in is delivered. One that grows by the root of 2 with each doubling of the steps keeps
everything, as a random walk does; one that doubles keeps everything, and all of one direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol, TypeAlias

from hvd_sparse import log
from hvd_sparse.compression.collectives import DENSE_COLLECTIVES
from hvd_sparse.planning.plan import BucketChoice

# Pairs of a number of steps, a power of two, and the residual's norm after them.
Norms: TypeAlias = Sequence[tuple[int, float]]

GROWTH = 1.3  # with each of the last doublings
DOUBLINGS = 3
# Waits of an entry, each 1 / density steps, in which a residual may grow.
WAITS = 4
# Steps that an entry of a ternary sum is granted. It waits until it reaches half of the scale: the
# larger the largest entry is beside the others, the longer.
TERNARY_WAIT = 250


class Engine(Protocol):
    """An engine of steps, which notes norms of the residual."""

    @property
    def residual_norms(self) -> Norms:
        """The norms so far."""


class ResidualGrowth:
    """Tells if this rank's residual grows without bound, and warns of it once, on rank 0.

    Args:
        rank: This rank.

    Attributes:
        found: True if it grew so when it was last looked at.
    """

    def __init__(self, rank: int) -> None:
        self.found = False
        self._may_warn = rank == 0

    def end_step(self, steps: int, engine: Engine, choices: Sequence[BucketChoice]) -> None:
        """Looks at the norms after a step after which the core may have noted one.

        Args:
            steps: Number of steps so far.
            engine: The engine that has taken them.
            choices: The buckets of the step.
        """
        if steps & (steps - 1):
            return
        norms = engine.residual_norms
        found = _slowest(choices)
        if found is None or not norms or norms[-1][0] != steps:
            return
        wait, delivered, advice = found
        self.found = grows(norms, after=round(WAITS * wait))
        if self.found and self._may_warn:
            self._may_warn = False
            (first, before), (_, now) = norms[-1 - DOUBLINGS], norms[-1]
            log.logger.warning(
                "the residual grows without bound: its norm was %.3g after %d steps and is %.3g "
                "after %d. Gradients come in faster than %s them, and act ever later: use %s",
                *(before, first, now, steps, delivered, advice),
            )


def _slowest(choices: Sequence[BucketChoice]) -> tuple[float, str, str] | None:
    """Returns the longest wait of an entry, what delivers it, and what to do if it is too long.

    Returns None if nothing waits: rounding errors of types that hold any magnitude do not grow.
    """
    sums = [choice for choice in choices if choice.collective in DENSE_COLLECTIVES]
    if any(choice.values == "ternary" for choice in sums):
        return TERNARY_WAIT, "ternary values deliver", "a smaller scale, or wider values"
    sparse = [choice for choice in choices if not choice.dense and choice not in sums]
    if not sparse:
        return None
    least = min(density for choice in sparse for density in choice.densities)
    advice = "a larger density, or a longer warm-up"
    return 1 / least, f"density {least:.3g} delivers", advice


def grows(norms: Norms, *, after: int) -> bool:
    """Returns true if each of the last doublings of the steps made the norm grow by `GROWTH`.

    Args:
        norms: Numbers of steps, ascending, and the norm after them.
        after: Doublings that begin before so many steps do not count.
    """
    last = norms[-1 - DOUBLINGS :]
    if len(last) <= DOUBLINGS or last[0][0] < after:
        return False
    return all(
        then == 2 * steps and norm > GROWTH * before
        for (steps, before), (then, norm) in pairwise(last)
    )
