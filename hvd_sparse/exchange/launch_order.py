"""The order in which buckets are launched: one for all ranks, learned from rank 0.

It changes when a bucket is sent, not what is sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

_FIRST_PLANS = frozenset({1, 4, 16, 64, 256})
_PLAN_EVERY = 1024


def plan_is_due(steps: int) -> bool:
    """Returns true if the order after that many steps is the next plan; on all ranks alike."""
    return steps in _FIRST_PLANS or (steps > 0 and steps % _PLAN_EVERY == 0)


def urgent_first(
    arrivals: Sequence[float], seconds: Sequence[float], uses: Sequence[int]
) -> list[int]:
    """Returns an order in which a bucket that is used early overtakes those that wait.

    Whenever an exchange has ended, the next bucket is the one that is used first, among those that
    have arrived. An exchange that has begun is not interrupted.

    Args:
        arrivals: Time at which each bucket's last gradient arrives, in seconds.
        seconds: Seconds of each bucket's exchange.
        uses: The buckets in the order in which the next forward pass uses them; the others are not
            used.
    """
    place = {bucket: place for place, bucket in enumerate(uses)}
    urgency = [place.get(bucket, len(uses)) for bucket in range(len(arrivals))]
    left, order, clock = set(range(len(arrivals))), [], 0.0
    while left:
        clock = max(clock, min(arrivals[bucket] for bucket in left))
        there = [bucket for bucket in left if arrivals[bucket] <= clock]
        chosen = min(there, key=lambda bucket: (urgency[bucket], arrivals[bucket]))
        left.remove(chosen)
        order.append(chosen)
        clock += seconds[chosen]
    return order


class LaunchOrder:
    """Buckets in the order in which rank 0 saw their gradients become ready.

    If the next forward pass waits for each bucket by itself, a bucket that it uses early overtakes
    others that still wait for the wire: see `urgent_first`, with the mean arrivals so far, and the
    shortest exchange, since a longer one has perhaps waited for a late rank.

    A bucket launches once all earlier ones have, so the ranks need no negotiation. A bucket whose
    gradients do not come (an unused layer) holds up those behind it until the step is synchronized;
    after the next plan it is last. An executor with several threads runs operations in another
    order at every step, so a bucket's positions in all steps count.

    Rank 0's order is sent after one step and adopted after the next. By then every rank has joined
    the broadcast, so that none waits for a rank that is busy with another optimizer.

    Args:
        ops: Number of ops of each bucket, in the order in which buckets launch at first.
        broadcast: Sends rank 0's list of numbers to all ranks, which pass lists of the same length.
            Returns at once a function that waits for the result.
    """

    def __init__(
        self, ops: Sequence[int], broadcast: Callable[[list[int]], Callable[[], list[int]]]
    ) -> None:
        self._ops = ops
        self._order = list(range(len(ops)))
        # By bucket, sums over the steps:
        self._positions = [0] * len(ops)
        self._arrivals = [0.0] * len(ops)
        self._seconds = [float("inf")] * len(ops)  # the least in any step
        self._broadcast = broadcast
        self._coming: Callable[[], list[int]] | None = None
        self._steps = 0

    def close(self) -> None:
        """Waits for an order that is in flight; on all ranks alike, after a step."""
        if self._coming is not None:
            self._order, self._coming = self._coming(), None

    def end_step(
        self, came: Sequence[float], *, uses: Sequence[int] = (), seconds: Sequence[float] = ()
    ) -> list[int] | None:
        """Counts a step, after which a plan may be sent or adopted.

        Args:
            came: Time at which each op was handed over in this step, in seconds from the first one.
            uses: The buckets in the order in which the forward pass after this step waited for
                them; empty if it did not.
            seconds: Seconds of each bucket's exchange, if it did.

        Returns:
            A new order of the buckets, or None to keep the old one; the same on all ranks.
        """
        times = iter(came)
        last = [max(itertools.islice(times, count)) for count in self._ops]
        for position, bucket in enumerate(sorted(range(len(last)), key=last.__getitem__)):
            self._positions[bucket] += position
        self._arrivals = [sum(pair) for pair in zip(self._arrivals, last, strict=True)]
        if uses:
            self._seconds = [min(pair) for pair in zip(self._seconds, seconds, strict=True)]
        before = self._order
        self._steps += 1
        self.close()
        if len(self._order) > 1 and plan_is_due(self._steps):
            self._coming = self._broadcast(self._plan(uses))
        return None if self._order == before else self._order

    def _plan(self, uses: Sequence[int]) -> list[int]:
        if uses:
            arrivals = [total / self._steps for total in self._arrivals]
            return urgent_first(arrivals, self._seconds, uses)
        return sorted(range(len(self._order)), key=self._positions.__getitem__)
