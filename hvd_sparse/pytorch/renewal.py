"""Rebuilds an optimizer's exchange for each new world of ranks, and hands its residuals over.

It is built, on all ranks alike, when an elastic state is synchronised, or by the first gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from numpy.typing import NDArray
from torch.utils.hooks import RemovableHandle

from hvd_sparse.errors import HvdSparseError
from hvd_sparse.pytorch import guards, hooks, masks, state
from hvd_sparse.pytorch.gradient_exchange import GradientExchange
from hvd_sparse.pytorch.host import TorchHost
from hvd_sparse.pytorch.local_steps import LocalSteps
from hvd_sparse.state import renewal
from hvd_sparse.state.inheritance import Rates, inherit, total_of
from hvd_sparse.stats.step_stats import Stats


def residuals_of(saved: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Returns the residuals in what `state.save` returned: by layer, flat."""
    return {name: part.cpu().numpy() for name, part in saved["residuals"].items()}


def summing_over(host: TorchHost) -> Callable[[NDArray[Any], str], NDArray[Any]]:
    """Returns the function by which a SavedSum adds up its parts over the ranks."""
    return lambda part, name: host.add_up(part, name).result()


class Successor:
    """A new exchange in PyTorch; see `hvd_sparse.state.inheritance.Successor`.

    Args:
        exchange: An exchange that has taken no step yet; for `total`, any.
        host: Its host.
    """

    def __init__(self, exchange: GradientExchange, host: TorchHost) -> None:
        self.world = exchange.world
        self.conditions = exchange.conditions
        self.layers = state.layers_of(exchange)
        self.allreduce = summing_over(host)
        self._exchange = exchange

    def residuals_of(self, held: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Returns the saved residuals by layer, flat."""
        return residuals_of(held)

    def rates_of(self, held: Mapping[str, Any]) -> Rates:
        """Returns the saved learning rates by parameter."""
        rates: Rates = held["lrs"]
        return rates

    def go_on(self, held: dict[str, Any]) -> None:
        """Restores this rank's own state, including thresholds and plan."""
        state.load(self._exchange, held)

    def begin(self, residuals: Mapping[str, NDArray[Any]], *, steps: int, rates: Any) -> None:
        """Starts after `steps` steps with the residuals that were shared out."""
        tensors = {name: torch.from_numpy(part) for name, part in residuals.items()}
        velocities = self._exchange.momentum.begin(self._exchange.parameters, steps)
        self._exchange.steps.load(tensors, {}, velocities, step=steps)
        self._exchange.rates.load(rates)

    def adopt(self, held: dict[str, Any] | None, source: int) -> None:
        """Adopts one rank's masks, or number of local steps and outer momentum. Collective."""
        if isinstance(self._exchange, LocalSteps):  # which have no masks
            self._exchange.adopt_local_state(None if held is None else held.get("local"), source)
        else:
            masks.adopt(self._exchange, {} if held is None else held.get("masks", {}), source)

    def total(self) -> dict[str, Any]:
        """Like `state.save`, but with the residuals of all ranks added up. Collective."""
        total = total_of(self, state.save(self._exchange))
        summed = {name: torch.from_numpy(part) for name, part in total["residuals"].items()}
        return {**total, "residuals": summed}


class Renewal(renewal.Renewal[GradientExchange]):
    """Builds an exchange when it is needed, and ends it with its world.

    Args:
        build: Builds and returns an exchange between the current ranks; None if this rank needs
            none. Collective.
        params: The parameters; the first gradient of any of them triggers the build.
        host: The host of the exchanges.
    """

    def __init__(
        self,
        build: Callable[[], GradientExchange | None],
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
        self._triggers: list[RemovableHandle] = []

    def defer(self) -> None:
        """Delays the build until the exchange is first needed."""
        if not self._retired:
            hook = hooks.calling(self.renew)
            self._triggers = [p.register_hook(hook) for p in self._params if p.requires_grad]  # type: ignore[no-untyped-call]

    @property
    def stats(self) -> Stats:
        """Cost of all steps so far, in this world and earlier ones."""
        return self._stats if self.exchange is None else self.exchange.stats

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
        was_pending, ending = self.pending, self.exchange
        super().give_up()
        if ending is not None:
            with suppress(HvdSparseError):  # the optimizer is gone
                ending.momentum.give_back(ending.velocities())
        if not was_pending:
            self.defer()

    def succeed(self, former: Renewal) -> None:
        """Makes the exchange that is yet to be built take over a former one's state."""
        if former.exchange is None:
            self.hold(former.held)
        else:
            self.hold(self._save(former.exchange))
            former.exchange.momentum.give_back(former.exchange.velocities())
        self._note(former)

    def retire(self, reason: str) -> None:
        """Refuses all further builds, with `reason` as the error."""
        self._retired = reason
        self._stop_waiting()

    def shares_parameters_with(self, other: Renewal) -> bool:
        """Returns true if both have a parameter in common."""
        mine = {id(param) for param in self._params}
        return any(id(param) in mine for param in other._params)

    def _build(self) -> GradientExchange | None:
        if self._retired:
            raise HvdSparseError(self._retired)
        self._host.require_initialized()
        for param in self._params[:1]:
            guards.check_not_capturing(param.device)
        with torch.no_grad():
            return self._builder()

    def _inherit(self, exchange: GradientExchange, held: dict[str, Any] | None) -> None:
        with torch.no_grad():
            state.load(exchange, None)  # for what is not inherited
            inherit(Successor(exchange, self._host), held, self.policy)
        exchange.stats = self._stats
        if not self._follows_rates:
            exchange.rates.clipping_seen()

    def _save(self, exchange: GradientExchange) -> dict[str, Any]:
        return state.save(exchange)

    def _total(self, exchange: GradientExchange) -> dict[str, Any]:
        return Successor(exchange, self._host).total()

    def _note(self, former: Renewal) -> None:
        """Notes what outlives an exchange besides its state."""
        self._stats, self._follows_rates = former.stats, former._follows_rates
        if former.exchange is not None:
            self._follows_rates = former.exchange.rates.followed

    def _stop_waiting(self) -> None:
        hooks.remove(self._triggers)
        self._triggers = []
