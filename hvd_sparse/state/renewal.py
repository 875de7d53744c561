"""What exchanges the gradients of an optimizer or a tape, from one world of ranks to the next.

An exchange ends with the world that it was made for: when Horovod is shut down, to begin again with
other ranks. What it holds is kept, and the next one takes it over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from hvd_sparse.ranks import lifecycle
from hvd_sparse.state.inheritance import RESET, SPREAD


class Ending(Protocol):
    """An exchange, as far as it ends."""

    def close(self) -> None:
        """Ends this rank's part; what it holds can still be saved."""

    def fail(self, reason: str) -> None:
        """Ends it on all ranks."""


_E = TypeVar("_E", bound=Ending)


class Renewal(ABC, Generic[_E]):
    """Builds an exchange when it is needed, and gives it up with its world.

    Each framework says how to build, save and inherit.

    Attributes:
        exchange: None where there is nobody to exchange with, or while `pending`.
        pending: Whether the exchange has yet to be built.
        policy: What becomes of residuals when ranks come or go; see `inherit`.
    """

    def __init__(self) -> None:
        self.exchange: _E | None = None
        self.pending = True
        self.policy = SPREAD
        self._former: _E | None = None  # closed; what it holds waits for the next
        self._held: dict[str, Any] | None = None  # the same, where it was saved or loaded

    @property
    def held(self) -> dict[str, Any] | None:
        """What waits for the next exchange, as it is saved."""
        return self._held if self._former is None else self._save(self._former)

    def hold(self, saved: dict[str, Any] | None) -> None:
        """Replaces what waits for the next exchange."""
        self._held, self._former = saved, None

    def renew(self) -> None:
        """Builds the exchange if it is pending. Collective."""
        if not self.pending:
            return
        held = self.held
        self.hold(held)
        exchange = self._build()
        if exchange is not None:
            try:
                self._inherit(exchange, held)
            except BaseException:
                exchange.close()
                raise
            self.hold(None)
        self.exchange, self.pending = exchange, False
        lifecycle.register(self)

    def give_up(self) -> None:
        """Ends the exchange, since its ranks are no longer what they were."""
        if self.pending:
            return
        self.pending = True
        if self.exchange is not None:
            self._former, self.exchange = self.exchange, None
            self._former.close()

    def pool(self) -> None:
        """Gives the exchange up, every rank keeping the sum of all residuals. Collective.

        Whichever of them will be left then loses nothing. Between two steps; not where residuals
        are to be reset.
        """
        if self.exchange is None or self.policy == RESET:
            return
        total = self._total(self.exchange)
        self.give_up()
        self.hold(total)

    def close(self) -> None:
        """Horovod is about to be shut down."""
        self.give_up()

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks."""
        if self.exchange is not None:
            self.exchange.fail(reason)

    @abstractmethod
    def _build(self) -> _E | None:
        """An exchange between the ranks of now; None where there is nobody else. Collective."""

    @abstractmethod
    def _inherit(self, exchange: _E, held: dict[str, Any] | None) -> None:
        """Gives a new exchange what this rank held, and the other ranks did. Collective."""

    @abstractmethod
    def _save(self, exchange: _E) -> dict[str, Any]:
        """What belongs to this rank's exchange, which may be closed; copied."""

    @abstractmethod
    def _total(self, exchange: _E) -> dict[str, Any]:
        """The same, with the residuals of all ranks added up. Collective."""
