"""In which order buckets start: that in which they became ready, as far as it lasts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from hvd_sparse.exchange.launch_order import LaunchOrder


class ReadyOrder:
    """Learned on rank 0, and taken up a step later by all ranks; see `LaunchOrder`.

    What an executor with several threads does first differs from step to step, so a bucket's places
    in all steps count.

    Args:
        pieces: How many each bucket has, in the order in which they start at first.
        broadcast: As that of `LaunchOrder`.
    """

    def __init__(
        self, pieces: Sequence[int], broadcast: Callable[[list[int]], Callable[[], list[int]]]
    ) -> None:
        self._pieces = pieces
        self._order = LaunchOrder(len(pieces), broadcast)
        self._places = [0] * len(pieces)  # of each bucket, summed over the steps

    def close(self) -> None:
        """Waits for an order that is on its way; on all ranks alike, after a step."""
        self._order.close()

    def end_step(self, came: Sequence[float]) -> list[int] | None:
        """Another order of the buckets, where one is to be taken up; on all ranks alike.

        Args:
            came: When each piece was there in this step, in seconds from the first one.
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
