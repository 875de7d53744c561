"""A decision of rank 0's on numbers of all ranks, while training goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from hvd_sparse.tuning.step_rows import Rows


class Channel(Protocol):
    """How the ranks tell each other numbers: sent in one step, taken up in the next."""

    def gather(self, numbers: Sequence[float]) -> Callable[[], list[list[float]]]:
        """Every rank's numbers to all."""

    def broadcast(self, numbers: Sequence[float]) -> Callable[[], list[float]]:
        """Rank 0's numbers to all, who give as many."""


class Decision:
    """Numbers of all ranks go to all, rank 0 decides, and tells all: in two steps.

    Args:
        channel: Between the ranks.
        measured: This rank's numbers; as many on all ranks.
        decide: What rank 0 tells all; other ranks give as many numbers, of no meaning.
        done: Gets the rows of all ranks, and what rank 0 has decided.
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
        """Goes on, on all ranks at the same step."""
        if self._told is None:
            self._rows = self._gathered()
            self._told = self._channel.broadcast(self._decide(self._rows))
        else:
            assert self._rows is not None
            self._done(self._rows, self._told())

    def close(self) -> None:
        """Waits for what is on its way."""
        if self._told is None:
            self._gathered()
        else:
            self._told()
