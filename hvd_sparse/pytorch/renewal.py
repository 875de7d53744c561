"""Rebuilds an optimizer's exchange for each new world of ranks.

It is built, on all ranks alike, when an elastic state is synchronised, or by the first gradient.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from hvd_sparse.errors import HvdSparseError
from hvd_sparse.pytorch import guards, state
from hvd_sparse.pytorch.host import TorchHost
from hvd_sparse.pytorch.inheritance import Successor
from hvd_sparse.pytorch.opaque import opaque
from hvd_sparse.pytorch.step_way import StepWay
from hvd_sparse.state import renewal
from hvd_sparse.state.inheritance import inherit
from hvd_sparse.stats.step_stats import Stats


class Renewal(renewal.Renewal[StepWay]):
    """Builds an exchange when it is needed, and ends it with its world.

    Args:
        build: Builds an exchange between the current ranks, and returns the way of taking steps
            with it; None if this rank needs none. Collective.
        params: The parameters; the first gradient of any of them triggers the build.
        host: The host of the exchanges.
    """

    def __init__(
        self,
        build: Callable[[], StepWay | None],
        params: Sequence[torch.Tensor],
        host: TorchHost,
    ) -> None:
        super().__init__()
        self._builder = build
        self._params = params
        self._host = host
        self._stats = Stats()
        self._follows_rates = True
        self._retired = ""
        self._triggers: list[Any] = []

    def defer(self) -> None:
        """Delays the build until the exchange is first needed."""
        self._wait_for_a_gradient()

    @property
    def way(self) -> StepWay | None:
        """The way of taking steps with the present exchange; None if there is no exchange."""
        return self.exchange

    @property
    def stats(self) -> Stats:
        """Cost of all steps so far, in this world and earlier ones."""
        return self._stats if self.way is None else self.way.exchange.stats

    def check_place(self, saved: dict[str, Any] | None) -> None:
        """Raises CheckpointMismatchError for a state of another rank, or number of ranks."""
        rank, size = self._host.place()
        state.check_place(saved, rank=rank, size=size)

    def renew(self) -> None:
        """Builds the exchange if it is pending. Collective.

        Raises:
            UnavailableError: The host is not initialised, or no longer knows the ranks.
            HvdSparseError: `retire` was called.
        """
        super().renew()
        self._stop_waiting()

    def give_up(self) -> None:
        """Ends the exchange, because its world of ranks has changed."""
        self._note(self)
        was_pending, ending = self.pending, self.way
        super().give_up()
        if ending is not None:
            with suppress(HvdSparseError):  # the optimizer is gone
                state.give_back_momentum(ending.exchange)
        if not was_pending:
            self._wait_for_a_gradient()

    def succeed(self, former: Renewal) -> None:
        """Makes the exchange that is yet to be built take over a former one's state."""
        if former.way is None:
            self.hold(former.held)
        else:
            self.hold(self._save(former.way))
            state.give_back_momentum(former.way.exchange)
        self._note(former)

    def retire(self, reason: str) -> None:
        """Refuses all further builds, with `reason` as the error."""
        self._retired = reason
        self._stop_waiting()

    def shares_parameters_with(self, other: Renewal) -> bool:
        """Returns true if both have a parameter in common."""
        mine = {id(param) for param in self._params}
        return any(id(param) in mine for param in other._params)

    def _build(self) -> StepWay | None:
        if self._retired:
            raise HvdSparseError(self._retired)
        self._host.require_initialized()
        for param in self._params[:1]:
            guards.check_not_capturing(param.device)
        with torch.no_grad():
            return self._builder()

    def _inherit(self, way: StepWay, held: dict[str, Any] | None) -> None:
        with torch.no_grad():
            state.load(way, None)  # for what is not inherited
            inherit(Successor(way, self._host), held, self.policy)
        way.exchange.stats = self._stats
        if not self._follows_rates:
            way.exchange.rates.clipping_seen()

    def _save(self, way: StepWay) -> dict[str, Any]:
        return state.save(way)

    def _total(self, way: StepWay) -> dict[str, Any]:
        return Successor(way, self._host).total()

    def _note(self, former: Renewal) -> None:
        """Notes what outlives an exchange besides its state."""
        self._stats, self._follows_rates = former.stats, former._follows_rates
        if former.way is not None:
            self._follows_rates = former.way.exchange.rates.followed

    def _wait_for_a_gradient(self) -> None:
        if self._retired:
            return
        me = weakref.ref(self)

        def renew(_: torch.Tensor) -> None:
            renewal = me()
            if renewal is not None:
                renewal.renew()

        hook = opaque(renew)
        self._triggers = [p.register_hook(hook) for p in self._params if p.requires_grad]  # type: ignore[no-untyped-call]

    def _stop_waiting(self) -> None:
        for trigger in self._triggers:
            trigger.remove()
        self._triggers = []
