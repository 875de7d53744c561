"""A decision that rank 0 makes on all ranks' numbers, while training goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from hvd_sparse.tuning.step_rows import Rows


class Channel(Protocol):
    """Exchanges numbers between ranks: sent in one step, received in the next."""

    def gather(self, numbers: Sequence[float]) -> Callable[[], list[list[float]]]:
        """Starts sending this rank's numbers to all; the result waits for every rank's numbers."""

    def broadcast(self, numbers: Sequence[float]) -> Callable[[], list[float]]:
        """Starts sending rank 0's numbers to all ranks, which pass as many of their own."""


class Decision:
    """Gathers numbers of all ranks, lets rank 0 decide and sends its decision to all, in two steps.

    Args:
        channel: Channel between the ranks.
        measured: This rank's numbers; as many on all ranks.
        decide: Makes rank 0's decision from the rows of all ranks; on other ranks it returns as
            many numbers, which are ignored.
        done: Takes the rows of all ranks, and rank 0's decision.
    """

    def __init__(
        self,
        channel: Channel,
        measured: Sequence[float],
        *,
        decide: Callable[[Rows], list[float]],
        done: Callable[[Rows, list[float]], None],
    ) -> None:
        self._channel = channel
        self._decide = decide
        self._done = done
        self._gathered = channel.gather(measured)
        self._rows: Rows | None = None
        self._told: Callable[[], list[float]] | None = None

    def end_step(self) -> None:
        """Takes the next stage; called by all ranks at the same step."""
        if self._told is None:
            self._rows = self._gathered()
            self._told = self._channel.broadcast(self._decide(self._rows))
        else:
            assert self._rows is not None
            self._done(self._rows, self._told())

    def close(self) -> None:
        """Waits for the operation in flight."""
        if self._told is None:
            self._gathered()
        else:
            self._told()
