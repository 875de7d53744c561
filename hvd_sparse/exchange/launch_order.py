"""The order in which buckets are launched: one for all ranks, learned from rank 0.

It changes when a bucket is sent, not what is sent.
"""

from __future__ import annotations

from collections.abc import Callable

_FIRST_PLANS = frozenset({1, 4, 16, 64, 256})
_PLAN_EVERY = 1024


def plan_is_due(steps: int) -> bool:
    """Returns true if the order after that many steps is the next plan; on all ranks alike."""
    return steps in _FIRST_PLANS or (steps > 0 and steps % _PLAN_EVERY == 0)


class LaunchOrder:
    """Buckets in the order in which rank 0 saw their gradients become ready.

    A bucket launches once all earlier ones have, so the ranks need no negotiation. A bucket whose
    gradients do not come (an unused layer) holds up those behind it until synchronize(); after the
    next plan it is last.

    Rank 0's order is sent after one step and adopted after the next. By then every rank has joined
    the broadcast, so that none waits for a rank that is busy with another optimizer.

    Args:
        buckets: Number of buckets. At first they launch in the order of their numbers.
        broadcast: Sends rank 0's list of numbers to all ranks, which pass lists of the same length.
            Returns at once a function that waits for the result.
    """

    def __init__(
        self, buckets: int, broadcast: Callable[[list[int]], Callable[[], list[int]]]
    ) -> None:
        self._order = list(range(buckets))
        self._broadcast = broadcast
        self._coming: Callable[[], list[int]] | None = None
        self._ready: list[int] = []
        self._steps = 0

    @property
    def order(self) -> list[int]:
        """Bucket numbers, first to launch first."""
        return list(self._order)

    def __getitem__(self, index: int) -> int:
        return self._order[index]

    def __len__(self) -> int:
        return len(self._order)

    def close(self) -> None:
        """Waits for an order that is in flight; on all ranks alike, after a step."""
        if self._coming is not None:
            self._order, self._coming = self._coming(), None

    def became_ready(self, bucket: int) -> None:
        """Notes that all gradients of the bucket have arrived in this step."""
        self._ready.append(bucket)

    def end_step(self) -> None:
        """Counts a step, after which a plan may be sent or adopted."""
        self._steps += 1
        self.close()
        if len(self._order) > 1 and plan_is_due(self._steps):
            late = [bucket for bucket in self._order if bucket not in self._ready]
            self._coming = self._broadcast(self._ready + late)
        self.release()

    def release(self) -> None:
        """Forgets which buckets became ready: the step is over, applied or not."""
        self._ready.clear()
