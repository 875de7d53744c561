"""Access to the state of TensorFlow's exchange, for jobs whose ranks come and go."""

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


class Successor:
    """TensorFlow's implementation of `hvd_sparse.state.inheritance.Successor`.

    Args:
        exchange: An exchange between all ranks of the job, before its first step; for `total` at
            any time.
    """

    def __init__(self, exchange: GradientExchange) -> None:
        self.world = exchange.world
        self.conditions = exchange.conditions
        self.layers = saved_state.layers_of(exchange)
        self._exchange = exchange

    def residuals_of(self, held: Mapping[str, Any]) -> Mapping[str, NDArray[Any]]:
        """Returns the saved residuals by layer, flat."""
        residuals: Mapping[str, NDArray[Any]] = held["residuals"]
        return residuals

    def rates_of(self, held: Mapping[str, Any]) -> Rates:
        """Returns the saved learning rate, of which an optimizer has one."""
        rates: Rates = held["rate"]
        return rates

    def allreduce(self, part: NDArray[Any], name: str) -> NDArray[Any]:
        """Sums an array over the ranks, with Horovod."""
        return summed(part, name)

    def go_on(self, held: dict[str, Any]) -> None:
        """Loads this rank's own state, including thresholds and plan."""
        saved_state.load(self._exchange, held)

    def begin(self, residuals: Mapping[str, NDArray[Any]], *, steps: int, rates: Any) -> None:
        """Starts after `steps` steps with this rank's share of the residuals."""
        own = {saved: name for name, saved in self._exchange.saved_names.items()}
        shares = {own[name]: part for name, part in residuals.items()}
        self._exchange.load(shares, {}, {}, step=steps, rate=rates)

    def adopt(self, held: dict[str, Any] | None, source: int) -> None:
        """Does nothing: local steps belong to the optimizer; see elastic_state.py."""

    def total(self) -> dict[str, Any]:
        """Returns `saved_state.save`'s state with the residuals of all ranks summed. Collective."""
        return total_of(self, saved_state.save(self._exchange))


def summed(part: NDArray[Any], name: str) -> NDArray[Any]:
    """Returns the sum over all ranks of the job. Collective; `name` is the same on all ranks."""
    total = hvd.allreduce(tf.constant(part), op=hvd.Sum, name=name.replace("/", "."))
    return np.asarray(total.numpy())
