"""Densities: the most that each bucket can send without making the step longer.

simulated  The step with every bucket at the floor sets the limit. Densities rise together, and a
           bucket stops where one more notch would make the step longer: max-min fairness by
           progressive filling, on a geometric ladder of densities. Network time that one bucket
           leaves free goes to others, however far away in the step.
paper      The rule of LAGS: a bucket's selection and exchange must fit into the backward pass of
           the next bucket alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_sparse.planning.account import Array
from hvd_sparse.planning.pipeline import Stage, simulate
from hvd_sparse.planning.profile import Profile

# Ratio of neighbouring densities: a plan's density is at most this factor below one that would fit.
NOTCH = 1.02
# Past this density a dense tensor is smaller than indices and values.
LARGEST_SPARSE = 0.5
# The step may be longer by this fraction: rounding errors, not time.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Ladder:
    """Times of buckets at each notch of density.

    Attributes:
        densities: [notches], ascending; the last one may be 1, which stands for dense.
        select: [buckets], seconds of selection, the same at every density.
        exchange: [buckets, notches], seconds of the exchange, not falling along a row.
    """

    densities: tuple[float, ...]
    select: Array
    exchange: Array

    def stages(self, sizes: Sequence[int], notches: Sequence[int]) -> list[Stage]:
        """Returns the stages of buckets of so many layers, each at its notch."""
        return [
            Stage(layers=size, select=float(select), exchange=float(row[notch]))
            for size, select, row, notch in zip(
                sizes, self.select, self.exchange, notches, strict=True
            )
        ]


def notches_between(floor: float, ceiling: float = LARGEST_SPARSE) -> tuple[float, ...]:
    """Returns densities from `floor` to `ceiling`, both included, by factors of `NOTCH` at most."""
    if floor >= ceiling:
        return (floor,)
    count = int(np.ceil(np.log(ceiling / floor) / np.log(NOTCH)))
    inner = floor * (ceiling / floor) ** (np.arange(1, count) / count)
    # Rounded to few digits, so that tables show the very densities from which k follows.
    rounded = (float(f"{density:.4g}") for density in inner)
    return (floor, *(density for density in rounded if floor < density < ceiling), ceiling)


def simulated_densities(
    profile: Profile,
    sizes: Sequence[int],
    ladder: Ladder,
    *,
    select_on: str = "caller",
    start: Sequence[int] | None = None,
    stretch: float = 0.0,
) -> list[int]:
    """Raises each bucket's notch as far as the simulated step stays as long as at `start`.

    Args:
        profile: The profile with the layers' backward times.
        sizes: Number of layers of each bucket.
        ladder: Times of the buckets at every notch.
        select_on: "caller" or "engine"; see `simulate`.
        start: The notch at which each bucket begins; None: the floor.
        stretch: Fraction by which the step may get longer.

    Returns:
        The notch of each bucket. None can rise by one without making the step longer.
    """
    begin = np.array(start if start is not None else [0] * len(sizes))
    every = np.arange(len(sizes))
    simulated = simulate(profile, ladder.stages(sizes, begin.tolist()), select_on=select_on)
    # The step ends at the largest of these sums, one per bucket: when the bucket is selected, which
    # no density changes, plus all exchanges from it on. So an exchange can grow by the least time
    # that any bucket up to its own has to spare.
    selected = np.array([bucket.selected for bucket in simulated.buckets])
    limit = simulated.step * (1 + stretch + TOLERANCE)

    def spare(notches: NDArray[np.int64]) -> Array:
        exchange = ladder.exchange[every, notches]
        rest: Array = limit - selected - np.cumsum(exchange[::-1])[::-1]
        return rest

    current, free = begin.copy(), np.ones(len(sizes), dtype=bool)
    level, top = 0, len(ladder.densities) - 1
    while level < top and free.any():
        together = np.where(free, np.maximum(current, level + 1), current)
        left = spare(current)
        if spare(together).min() >= 0:
            current = together
        else:  # one by one; those that add least time on the network first
            more = ladder.exchange[every, together] - ladder.exchange[every, current]
            for i in np.lexsort((every, more)):
                if together[i] == current[i]:
                    continue
                if more[i] <= left[: i + 1].min():
                    left[: i + 1] -= more[i]
                    current[i] = together[i]
                else:
                    free[i] = False
        level += 1
    return [int(notch) for notch in current]


def paper_densities(profile: Profile, sizes: Sequence[int], ladder: Ladder) -> list[int]:
    """Returns the notch of each bucket by the rule of LAGS.

    That is the largest density with t_select + t_exchange <= the backward pass of the next bucket;
    or the floor where nothing fits, and for the last bucket, which no backward pass follows.

    Args:
        profile: The profile with the layers' backward times.
        sizes: Number of layers of each bucket.
        ladder: Times of the buckets at every notch.

    Reference:
        Shi et al., Layer-wise Adaptive Gradient Sparsification for Distributed Deep Learning with
        Convergence Guarantees, ECAI 2020, equation 18, with the model of the collective in use.
    """
    ends = np.cumsum(sizes)
    backward = np.array([layer.backward for layer in profile.layers])
    waits = [backward[end - size : end].sum() for size, end in zip(sizes, ends, strict=True)]
    notches = []
    for i in range(len(sizes)):
        room = waits[i + 1] if i + 1 < len(sizes) else 0.0
        fits = np.flatnonzero(ladder.select[i] + ladder.exchange[i] <= room)
        notches.append(int(fits[-1]) if fits.size else 0)
    return notches
