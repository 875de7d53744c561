"""The launch order of buckets under an executor, from their places in all steps so far."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from hvd_sparse.exchange.launch_order import LaunchOrder


class ReadyOrder:
    """A launch order that rank 0 learns and all ranks adopt a step later; see `LaunchOrder`.

    An executor with several threads runs operations in another order at every step, so a bucket's
    places in all steps count.

    Args:
        pieces: Number of pieces of each bucket, in the order in which buckets launch at first.
        broadcast: Sends rank 0's list to all ranks; see `LaunchOrder`.
    """

    def __init__(
        self, pieces: Sequence[int], broadcast: Callable[[list[int]], Callable[[], list[int]]]
    ) -> None:
        self._pieces = pieces
        self._order = LaunchOrder(len(pieces), broadcast)
        self._places = [0] * len(pieces)  # sums over the steps, by bucket

    def close(self) -> None:
        """Waits for an order that is in flight; on all ranks alike, after a step."""
        self._order.close()

    def end_step(self, came: Sequence[float]) -> list[int] | None:
        """Returns a new order of the buckets, or None to keep the old one; on all ranks alike.

        Args:
            came: When each piece came in this step, in seconds from the first one.
        """
        pieces = iter(came)
        last = [max(itertools.islice(pieces, count)) for count in self._pieces]
        for place, bucket in enumerate(sorted(range(len(last)), key=last.__getitem__)):
            self._places[bucket] += place
        for bucket in sorted(range(len(last)), key=self._places.__getitem__):
            self._order.became_ready(bucket)
        before = self._order.order
        self._order.end_step()
        return None if self._order.order == before else self._order.order
