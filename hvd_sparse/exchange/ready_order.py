"""The launch order of buckets under an executor, from their positions in all steps so far."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from hvd_sparse.exchange.launch_order import LaunchOrder


class ReadyOrder:
    """A launch order that rank 0 learns and all ranks adopt a step later; see `LaunchOrder`.

    An executor with several threads runs operations in another order at every step, so a bucket's
    positions in all steps count.

    Args:
        ops: Number of ops of each bucket, in the order in which buckets launch at first.
        broadcast: Sends rank 0's list to all ranks; see `LaunchOrder`.
    """

    def __init__(
        self, ops: Sequence[int], broadcast: Callable[[list[int]], Callable[[], list[int]]]
    ) -> None:
        self._ops = ops
        self._order = LaunchOrder(len(ops), broadcast)
        self._positions = [0] * len(ops)  # sums over the steps, by bucket

    def close(self) -> None:
        """Waits for an order that is in flight; on all ranks alike, after a step."""
        self._order.close()

    def end_step(self, arrived: Sequence[float]) -> list[int] | None:
        """Returns a new order of the buckets, or None to keep the old one; on all ranks alike.

        Args:
            arrived: When each op arrived in this step, in seconds from the first one.
        """
        times = iter(arrived)
        last = [max(itertools.islice(times, count)) for count in self._ops]
        for position, bucket in enumerate(sorted(range(len(last)), key=last.__getitem__)):
            self._positions[bucket] += position
        for bucket in sorted(range(len(last)), key=self._positions.__getitem__):
            self._order.became_ready(bucket)
        before = self._order.order
        self._order.end_step()
        return None if self._order.order == before else self._order.order
