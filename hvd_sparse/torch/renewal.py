"""An optimizer's exchange, from one world of ranks to the next.

An exchange ends with the world that it was made for: when Horovod is shut down, to begin again with
other ranks. What it holds is kept, and the next one takes it over. That is built, on all ranks
alike, when an elastic state is synchronised, or by the first gradient.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import horovod.torch as hvd
import torch

from hvd_sparse import lifecycle
from hvd_sparse.errors import HvdSparseError, UnavailableError
from hvd_sparse.step_stats import Stats
from hvd_sparse.torch import state
from hvd_sparse.torch.gradient_exchange import GradientExchange
from hvd_sparse.torch.inheritance import RESET, SPREAD, inherit, total_of


class Renewal:
    """Builds an exchange when it is needed, and gives it up with its world.

    Args:
        build: An exchange between the ranks of now; None where this one has nobody to exchange
            with. Collective.
        params: The first gradient of any of them has it built.
        process_set: Horovod's; of the exchange.

    Attributes:
        exchange: None where there is nobody to exchange with, or while `pending`.
        pending: Whether the exchange has yet to be built.
        policy: What becomes of residuals when ranks come or go; see `inherit`.
    """

    def __init__(
        self,
        build: Callable[[], GradientExchange | None],
        params: Sequence[torch.Tensor],
        process_set: Any,
    ) -> None:
        self.exchange: GradientExchange | None = None
        self.pending = True
        self.policy = SPREAD
        self._build = build
        self._params = params
        self._process_set = process_set
        self._former: GradientExchange | None = None  # closed; what it holds waits for the next
        self._held: dict[str, Any] | None = None  # the same, where it was saved or loaded
        self._stats = Stats()
        self._follows_rates = True
        self._retired = ""
        self._triggers: list[Any] = []

    def defer(self) -> None:
        """Leaves building to whatever needs the exchange first."""
        self._wait_for_a_gradient()

    @property
    def stats(self) -> Stats:
        """What all steps so far cost, in this world and those before."""
        return self._stats if self.exchange is None else self.exchange.stats

    @property
    def held(self) -> dict[str, Any] | None:
        """What waits for the next exchange, as `state.save` gave it."""
        return self._held if self._former is None else state.save(self._former)

    def hold(self, saved: dict[str, Any] | None) -> None:
        """Replaces what waits for the next exchange, while `pending`."""
        self._held, self._former = saved, None

    def check_place(self, saved: dict[str, Any] | None) -> None:
        """Refuses what another rank saved, or another number of them; CheckpointMismatchError."""
        state.check_place(saved, rank=self._process_set.rank(), size=self._process_set.size())

    def renew(self) -> None:
        """Builds the exchange if it is pending. Collective.

        Raises:
            UnavailableError: Horovod is not initialised, or has not kept the process set.
            HvdSparseError: This was retired.
        """
        if not self.pending:
            return
        if self._retired:
            raise HvdSparseError(self._retired)
        if not hvd.is_initialized():
            raise UnavailableError(
                "Horovod is not initialised: call hvd.init() first, also after hvd.shutdown()"
            )
        with torch.no_grad():
            exchange = self._build()
            if exchange is not None:
                try:
                    inherit(exchange, self.held, self.policy, self._process_set)
                except BaseException:
                    exchange.close()
                    raise
                exchange.stats = self._stats
                if not self._follows_rates:
                    exchange.rates.clipping_seen()
                self.hold(None)
        self.exchange, self.pending = exchange, False
        self._stop_waiting()
        lifecycle.register(self)

    def give_up(self) -> None:
        """Ends the exchange, since its ranks are no longer what they were."""
        if self.pending:
            return
        self.pending = True
        if self.exchange is not None:
            self._former, self.exchange = self.exchange, None
            self._stats = self._former.stats
            self._follows_rates = self._former.rates.followed
            self._former.close()
        self._wait_for_a_gradient()

    def pool(self) -> None:
        """Gives the exchange up, every rank keeping the sum of all residuals. Collective.

        Whichever of them will be left then loses nothing. Between two steps; not where residuals
        are to be reset.
        """
        if self.exchange is None or self.policy == RESET:
            return
        total = total_of(self.exchange, self._process_set)
        self.give_up()
        self.hold(total)

    def retire(self, reason: str) -> None:
        """Builds no exchange any more."""
        self._retired = reason
        self._stop_waiting()

    def shares_parameters_with(self, other: Renewal) -> bool:
        """Whether any of the parameters is the other's, too."""
        mine = {id(param) for param in self._params}
        return any(id(param) in mine for param in other._params)

    def close(self) -> None:
        """Horovod is about to be shut down."""
        self.give_up()

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks."""
        if self.exchange is not None:
            self.exchange.fail(reason)

    def _wait_for_a_gradient(self) -> None:
        if self._retired:
            return
        me = weakref.ref(self)

        def renew(_: torch.Tensor) -> None:
            renewal = me()
            if renewal is not None:
                renewal.renew()

        self._triggers = [p.register_hook(renew) for p in self._params if p.requires_grad]  # type: ignore[no-untyped-call]

    def _stop_waiting(self) -> None:
        for trigger in self._triggers:
            trigger.remove()
        self._triggers = []
