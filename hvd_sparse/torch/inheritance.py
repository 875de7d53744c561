"""How PyTorch's exchange keeps what a rank holds, for ranks that come and go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from hvd_sparse.state.inheritance import Rates, total_of
from hvd_sparse.torch import state
from hvd_sparse.torch.gradient_exchange import GradientExchange
from hvd_sparse.torch.residual_sums import residuals_of, summing_over


class Heir:
    """See `hvd_sparse.state.inheritance.Heir`.

    Args:
        exchange: That has taken no step yet; or, for `total`, any.
        process_set: Horovod's; of the exchange.
    """

    def __init__(self, exchange: GradientExchange, process_set: Any) -> None:
        self.world = exchange.world
        self.layers = state.layers_of(exchange)
        self.allreduce = summing_over(process_set)
        self._exchange = exchange

    def residuals_of(self, held: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """By layer, flat."""
        return residuals_of(held)

    def rates_of(self, held: Mapping[str, Any]) -> Rates:
        """By parameter."""
        rates: Rates = held["lrs"]
        return rates

    def go_on(self, held: dict[str, Any]) -> None:
        """With its thresholds, and its plan."""
        state.load(self._exchange, held)

    def begin(self, residuals: Mapping[str, NDArray[Any]], *, steps: int, rates: Any) -> None:
        """With what was shared out."""
        tensors = {name: torch.from_numpy(part) for name, part in residuals.items()}
        self._exchange.state.load(tensors, {}, {})
        self._exchange.steps = steps
        self._exchange.rates.load(rates)

    def total(self) -> dict[str, Any]:
        """What `state.save` returns, with the residuals of all ranks added up. Collective."""
        total = total_of(self, state.save(self._exchange))
        summed = {name: torch.from_numpy(part) for name, part in total["residuals"].items()}
        return {**total, "residuals": summed}
