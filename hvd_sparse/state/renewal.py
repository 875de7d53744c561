"""Renews the exchange of an optimizer or a tape from one world of ranks to the next.

An exchange ends with the world that it was built for: when Horovod is shut down, to begin again
with other ranks. Its state is kept, and the next exchange takes it over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from hvd_sparse.ranks import lifecycle
from hvd_sparse.state.inheritance import RESET, SPREAD


class Ending(Protocol):
    """An exchange, as far as its end is concerned."""

    def close(self) -> None:
        """Ends this rank's part; its state can still be saved."""

    def fail(self, reason: str) -> None:
        """Ends it on all ranks."""


_E = TypeVar("_E", bound=Ending)


class Renewal(ABC, Generic[_E]):
    """Builds an exchange when it is needed, and gives it up with its world.

    Each framework says how to build, save and inherit.

    Attributes:
        exchange: The exchange; None if there is no other rank, or while `pending`.
        pending: True if the exchange has yet to be built.
        policy: Policy for residuals when ranks come or go; see `inherit`.
    """

    def __init__(self) -> None:
        self.exchange: _E | None = None
        self.pending = True
        self.policy = SPREAD
        self._former: _E | None = None  # closed; its state is for the next exchange
        self._held: dict[str, Any] | None = None  # such a state that was saved or loaded

    @property
    def held(self) -> dict[str, Any] | None:
        """The state that the next exchange takes over, in its saved form."""
        return self._held if self._former is None else self._save(self._former)

    def hold(self, saved: dict[str, Any] | None) -> None:
        """Replaces the state that the next exchange takes over."""
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
        """Ends the exchange, since its world of ranks ends."""
        if self.pending:
            return
        self.pending = True
        if self.exchange is not None:
            self._former, self.exchange = self.exchange, None
            self._former.close()

    def pool(self) -> None:
        """Gives the exchange up, with the sum of all residuals kept on every rank. Collective.

        Then nothing is lost, whichever ranks remain. Call it between two steps. It has no effect if
        residuals are to be reset.
        """
        if self.exchange is None or self.policy == RESET:
            return
        total = self._total(self.exchange)
        self.give_up()
        self.hold(total)

    def close(self) -> None:
        """Gives the exchange up, since Horovod is about to be shut down."""
        self.give_up()

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks."""
        if self.exchange is not None:
            self.exchange.fail(reason)

    @abstractmethod
    def _build(self) -> _E | None:
        """Builds an exchange between the present ranks; None if there is only one. Collective."""

    @abstractmethod
    def _inherit(self, exchange: _E, held: dict[str, Any] | None) -> None:
        """Gives a new exchange the state that this rank and the others held. Collective."""

    @abstractmethod
    def _save(self, exchange: _E) -> dict[str, Any]:
        """Returns a copy of the state of this rank's exchange, which may be closed."""

    @abstractmethod
    def _total(self, exchange: _E) -> dict[str, Any]:
        """Returns that state with the residuals of all ranks added up. Collective."""
