"""Passes residuals from one PyTorch exchange to the next when ranks come or go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from hvd_sparse.pytorch import state
from hvd_sparse.pytorch.host import TorchHost
from hvd_sparse.pytorch.step_way import StepWay
from hvd_sparse.state.inheritance import Rates, total_of


def residuals_of(saved: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Returns the residuals in what `state.save` returned: by layer, flat."""
    return {name: part.cpu().numpy() for name, part in saved["residuals"].items()}


def summing_over(host: TorchHost) -> Callable[[NDArray[Any], str], NDArray[Any]]:
    """Returns the function by which a SavedSum adds up its parts over the ranks."""
    return lambda part, name: host.add_up(part, name).result()


class Successor:
    """A new exchange in PyTorch; see `hvd_sparse.state.inheritance.Successor`.

    Args:
        way: A way of taking steps that has taken none yet; for `total`, any.
        host: The host of the exchange.
    """

    def __init__(self, way: StepWay, host: TorchHost) -> None:
        self.world = way.exchange.world
        self.conditions = way.exchange.conditions
        self.layers = state.layers_of(way.exchange)
        self.allreduce = summing_over(host)
        self._way = way

    def residuals_of(self, held: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Returns the saved residuals by layer, flat."""
        return residuals_of(held)

    def rates_of(self, held: Mapping[str, Any]) -> Rates:
        """Returns the saved learning rates by parameter."""
        rates: Rates = held["lrs"]
        return rates

    def go_on(self, held: dict[str, Any]) -> None:
        """Restores this rank's own state, including thresholds and plan."""
        state.load(self._way, held)

    def begin(self, residuals: Mapping[str, NDArray[Any]], *, steps: int, rates: Any) -> None:
        """Starts after `steps` steps with the residuals that were shared out."""
        tensors = {name: torch.from_numpy(part) for name, part in residuals.items()}
        exchange = self._way.exchange
        velocities = state.begun_velocities(exchange, step=steps)
        exchange.driven.load(tensors, {}, velocities, step=steps)
        exchange.rates.load(rates)

    def adopt(self, held: dict[str, Any] | None, source: int) -> None:
        """Adopts the number of local steps and the outer momentum of one rank. Collective."""
        self._way.adopt_local_state(None if held is None else held.get("local"), source)

    def total(self) -> dict[str, Any]:
        """Like `state.save`, but with the residuals of all ranks added up. Collective."""
        total = total_of(self, state.save(self._way))
        summed = {name: torch.from_numpy(part) for name, part in total["residuals"].items()}
        return {**total, "residuals": summed}
