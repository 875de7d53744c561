"""Operations that local steps and steps in flight define; plain steps do nothing in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class PlainSteps:
    """Steps after which weights are the same on all ranks, and nothing is in flight."""

    def settle(self) -> None:
        """Waits for updates that step() has left in flight; raises the error of a refused one."""

    def settle_quietly(self) -> None:
        """Like `settle`, but raises nothing."""

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Lends the parameters weights that are the same on all ranks, within the context."""
        yield

    def interval_state(self) -> dict[str, Any] | None:
        """Returns the plain state of an interval of local steps; None without such."""
        return None

    def local_state(self) -> dict[str, Any] | None:
        """Returns a copy of all state of local steps, that of the interval included."""
        return None

    def load_local_state(self, saved: dict[str, Any] | None) -> None:
        """Restores what `local_state` returned, between two steps."""
