"""A decision that rank 0 makes on all ranks' numbers, while training goes on.

It is sent as text: a record that a log or a debugger shows as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from hvd_sparse.tuning.step_rows import Rows


class Channel(Protocol):
    """Exchanges numbers and texts between ranks: sent in one step, received in the next."""

    def gather(self, numbers: Sequence[float]) -> Callable[[], list[list[float]]]:
        """Starts sending this rank's numbers to all; the result waits for every rank's numbers."""

    def broadcast(self, text: str) -> Callable[[], str]:
        """Starts sending rank 0's text, one line of it, to all ranks, which pass an empty one."""


class Decision:
    """Gathers numbers of all ranks, lets rank 0 decide and sends its decision to all, in two steps.

    Args:
        channel: Channel between the ranks.
        measured: This rank's numbers; as many on all ranks.
        decide: Makes rank 0's decision from the rows of all ranks, one line of text; on other
            ranks it returns an empty one.
        on_decided: Takes the rows of all ranks, and rank 0's decision.
    """

    def __init__(
        self,
        channel: Channel,
        measured: Sequence[float],
        *,
        decide: Callable[[Rows], str],
        on_decided: Callable[[Rows, str], None],
    ) -> None:
        self._channel = channel
        self._decide = decide
        self._on_decided = on_decided
        self._gathered = channel.gather(measured)
        self._rows: Rows | None = None
        self._decided: Callable[[], str] | None = None

    def end_step(self) -> None:
        """Takes the next stage; called by all ranks at the same step."""
        if self._decided is None:
            self._rows = self._gathered()
            self._decided = self._channel.broadcast(self._decide(self._rows))
        else:
            assert self._rows is not None
            self._on_decided(self._rows, self._decided())

    def close(self) -> None:
        """Waits for the operation in flight."""
        if self._decided is None:
            self._gathered()
        else:
            self._decided()
