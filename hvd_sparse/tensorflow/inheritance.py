"""How TensorFlow's exchange keeps what a rank holds, for ranks that come and go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_sparse.state.inheritance import Rates, total_of
from hvd_sparse.tensorflow import saved_state
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange


class Heir:
    """See `hvd_sparse.state.inheritance.Heir`.

    Args:
        exchange: Between all ranks of the job; that has taken no step yet, or, for `total`, any.
    """

    def __init__(self, exchange: GradientExchange) -> None:
        self.world = exchange.world
        self.layers = saved_state.layers_of(exchange)
        self._exchange = exchange

    def residuals_of(self, held: Mapping[str, Any]) -> Mapping[str, NDArray[Any]]:
        """By layer, flat."""
        residuals: Mapping[str, NDArray[Any]] = held["residuals"]
        return residuals

    def rates_of(self, held: Mapping[str, Any]) -> Rates:
        """The one of the optimizer."""
        rates: Rates = held["rate"]
        return rates

    def allreduce(self, part: NDArray[Any], name: str) -> NDArray[Any]:
        """By Horovod."""
        return summed(part, name)

    def go_on(self, held: dict[str, Any]) -> None:
        """With its thresholds, and its plan."""
        saved_state.load(self._exchange, held)

    def begin(self, residuals: Mapping[str, NDArray[Any]], *, steps: int, rates: Any) -> None:
        """With what was shared out."""
        own = {saved: name for name, saved in self._exchange.saved_names.items()}
        shares = {own[name]: part for name, part in residuals.items()}
        self._exchange.load(shares, {}, {}, step=steps, rate=rates)

    def total(self) -> dict[str, Any]:
        """What `saved_state.save` returns, with residuals of all ranks added up. Collective."""
        return total_of(self, saved_state.save(self._exchange))


def summed(part: NDArray[Any], name: str) -> NDArray[Any]:
    """The sum over all ranks of the job. Collective; the name is the same on all of them."""
    total = hvd.allreduce(tf.constant(part), op=hvd.Sum, name=name.replace("/", "."))
    return np.asarray(total.numpy())
