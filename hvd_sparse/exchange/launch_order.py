"""The order in which buckets are launched: one for all ranks, learned from rank 0.

It changes when a bucket is sent, not what is sent.
"""

from __future__ import annotations

from collections.abc import Callable

_FIRST_PLANS = frozenset({1, 4, 16, 64, 256})
_PLAN_EVERY = 1024


def plan_is_due(steps: int) -> bool:
    """Whether the order of that many steps is the next plan; on all ranks alike."""
    return steps in _FIRST_PLANS or (steps > 0 and steps % _PLAN_EVERY == 0)


class LaunchOrder:
    """Buckets in the order in which rank 0 saw their gradients become ready.

    A bucket launches once all earlier ones have, so that the ranks need no negotiation. One whose
    gradients do not come (an unused layer) holds up those behind it until synchronize(); after the
    next plan it is last.

    Rank 0's order is sent after one step and taken up after the next: by then every rank has begun
    to wait for it, so that nobody has to wait for a rank that is busy with another optimizer.

    Args:
        buckets: Their number. They start in their own order.
        broadcast: Sends rank 0's list of numbers to all, who give lists of the same length. Returns
            at once; what it returns waits for the result.
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

    def __getitem__(self, place: int) -> int:
        return self._order[place]

    def __len__(self) -> int:
        return len(self._order)

    def close(self) -> None:
        """Waits for an order that is on its way; on all ranks alike, after a step."""
        if self._coming is not None:
            self._order, self._coming = self._coming(), None

    def became_ready(self, bucket: int) -> None:
        """All gradients of the bucket have arrived in this step."""
        self._ready.append(bucket)

    def end_step(self) -> None:
        """Counts a step, after which a plan may be sent or taken up."""
        self._steps += 1
        self.close()
        if len(self._order) > 1 and plan_is_due(self._steps):
            late = [bucket for bucket in self._order if bucket not in self._ready]
            self._coming = self._broadcast(self._ready + late)
        self.release()

    def release(self) -> None:
        """Forgets what became ready: the step is over, applied or not."""
        self._ready.clear()
