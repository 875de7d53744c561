"""Sees that local steps learn worse than they should, from what the ranks report at meetings.

Three signs, none of which costs a message of its own:

- The mean of the losses that the program reports is above its lowest by more than their scatter.
- The ranks' differences have grown out of proportion to the learning rate: gradients explode.
- A rank's residual grows without bound: entries come in faster than meetings deliver them.

All ranks have the same reports, and so see the same.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from hvd_sparse.exchange.interval import Report

# Losses are compared by stretches of so many local steps, and of so many intervals, at least.
STRETCH_STEPS, STRETCH_INTERVALS = 64, 4
# The loss has risen if it is above the lowest by so many standard errors, and by this fraction.
_ERRORS, _RISE = 3.0, 0.02
# Differences have exploded if they are so many times as large as the median of the last intervals:
# of that many, and of so many at least.
_EXPLOSION, _LAST, _FEWEST = 8.0, 64, 4


class _Stretch(NamedTuple):
    """The mean loss of some intervals, and its standard error."""

    loss: float
    error: float

    def is_above(self, lowest: _Stretch) -> bool:
        """Returns true if this loss has risen from another one."""
        rise = self.loss - lowest.loss
        scatter = math.hypot(self.error, lowest.error)
        return rise > max(_ERRORS * scatter, _RISE * abs(lowest.loss))


# Losses and local steps of the present stretch, the lowest stretch so far, the differences' norms
# over the learning rate, that rate at the last meeting, and true in the first stretch of a plan.
GuardState: TypeAlias = tuple[list[float], int, tuple[float, ...] | None, list[float], float, bool]


class LearningGuard:
    """Watches what the ranks report at the end of each interval."""

    def __init__(self) -> None:
        self._losses: list[float] = []  # means of the intervals of this stretch
        self._steps = 0  # local steps of this stretch
        self._lowest: _Stretch | None = None
        self._moves: deque[float] = deque(maxlen=_LAST)  # norms, over the learning rate
        self._rate = 0.0  # at the last meeting
        self._is_new = False  # the plan, in whose first stretch old residuals arrive

    def end_interval(self, reports: Sequence[Report]) -> str | None:
        """Takes the reports of an interval; returns why the training learns badly, if it does.

        Args:
            reports: The reports of all ranks, in rank order.
        """
        return self._explosion(reports) or self._rise(reports) or _growth(reports)

    def begin_plan(self) -> None:
        """Forgets what depends on the number of local steps."""
        self._losses, self._steps, self._is_new = [], 0, True
        self._moves.clear()

    def _explosion(self, reports: Sequence[Report]) -> str | None:
        rate = max(reports[0].rate, self._rate)  # it may have fallen within the interval
        self._rate = reports[0].rate
        moved = math.sqrt(statistics.fmean(report.moved**2 for report in reports))
        if not (rate > 0 and 0 < moved < math.inf):
            return None
        usual = statistics.median(self._moves) if len(self._moves) >= _FEWEST else math.inf
        self._moves.append(moved / rate)
        if moved / rate <= _EXPLOSION * usual:
            return None
        return f"the ranks moved {moved / rate / usual:.3g} times as far as usual"

    def _rise(self, reports: Sequence[Report]) -> str | None:
        count = sum(report.losses for report in reports)
        if not count:
            return None
        self._losses.append(sum(report.loss for report in reports) / count)
        self._steps += round(reports[0].taken)
        if self._steps < STRETCH_STEPS or len(self._losses) < STRETCH_INTERVALS:
            return None
        error = statistics.stdev(self._losses) / math.sqrt(len(self._losses))
        now = _Stretch(statistics.fmean(self._losses), error)
        self._losses, self._steps = [], 0
        is_new, self._is_new = self._is_new, False
        lowest = self._lowest
        if lowest is None or now.loss < lowest.loss:
            self._lowest = now
        if is_new or lowest is None or not now.is_above(lowest):
            return None
        return f"the mean loss has risen from {lowest.loss:.4g} to {now.loss:.4g}"

    def state(self) -> GuardState:
        """Returns all state, as plain values."""
        lowest = None if self._lowest is None else tuple(self._lowest)
        return list(self._losses), self._steps, lowest, list(self._moves), self._rate, self._is_new

    def load(self, state: GuardState) -> None:
        """Restores what `state` returned."""
        losses, self._steps, lowest, moves, self._rate, self._is_new = state
        self._losses, self._moves = list(losses), deque(moves, maxlen=_LAST)
        self._lowest = None if lowest is None else _Stretch(*lowest)


def _growth(reports: Sequence[Report]) -> str | None:
    growing = [rank for rank, report in enumerate(reports) if report.grows]
    return f"the residual of rank {growing[0]} grows without bound" if growing else None
