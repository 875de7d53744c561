"""The exchange of some variables' gradients, from one world of ranks to the next.

Traced functions continue with the exchange of the next world: it uses the state variables of the
former one, and its driver has the number of the former driver.
"""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.ranks.world import World, in_elastic_job
from hvd_sparse.state import renewal
from hvd_sparse.state.inheritance import inherit
from hvd_sparse.stats.step_stats import TotalStats
from hvd_sparse.tensorflow import saved_state
from hvd_sparse.tensorflow.blueprint import Blueprint
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.graph_state import GraphState
from hvd_sparse.tensorflow.inheritance import Successor


class Renewal(renewal.Renewal[GradientExchange]):
    """Builds an exchange when it is needed, and gives it up with its world.

    Args:
        blueprint: The description of the exchange; the same on all ranks.
        process_set: Horovod's process set.

    Attributes:
        blueprint: The description of the exchange.
        process_set: Horovod's process set.
        stand_in: The exchange of a single rank in an elastic job, which leaves gradients unchanged.
            The state that the rank held before is kept for the next exchange.
    """

    def __init__(self, blueprint: Blueprint, process_set: Any) -> None:
        super().__init__()
        self.blueprint = blueprint
        self.process_set = process_set
        self.stand_in: GradientExchange | None = None
        self._graph = GraphState(blueprint.prefix)
        self._committed: dict[str, Any] | None = None
        self._total_stats = TotalStats()

    @property
    def current(self) -> GradientExchange | None:
        """The exchange that averages gradients now; None if there is none or it has ended."""
        current = self.exchange or self.stand_in
        return None if current is None or current.closed else current

    @property
    def holder(self) -> GradientExchange | None:
        """The exchange that holds this rank's residuals now, which may have ended."""
        return self.exchange or self._former

    def give_up(self) -> None:
        """Ends the exchange, because its world has changed."""
        if self.exchange is not None:
            self._total_stats = self.exchange.total
        super().give_up()
        if self.stand_in is not None:
            self.stand_in.close()
            self.stand_in = None

    def commit(self) -> None:
        """Saves this rank's state, between two steps."""
        self._committed = self.held if self.exchange is None else self._save(self.exchange)

    def restore(self) -> None:
        """Gives the exchange up; the next one takes over the state of the last commit."""
        self.give_up()
        self.hold(self._committed)

    def _build(self) -> GradientExchange | None:
        world = World.from_horovod(hvd, self.process_set)
        exchange = GradientExchange(
            self.blueprint.variables,
            [bool(slices) for slices in self.blueprint.sliced],
            self.blueprint.settings,
            world=world,
            exchange=Exchange.between_ranks(world, name=f"exchange {self.blueprint.serial}"),
            process_set=self.process_set,
            prefix=self.blueprint.prefix,
            graph=self._graph,
            device=self.blueprint.device,
        )
        exchange.total = self._total_stats
        exchange.load({}, {}, {}, step=0, rate=0.0)  # a former exchange may have left its values
        if world.size == 1 and in_elastic_job():
            self.stand_in = exchange
            return None
        return exchange

    def _inherit(self, exchange: GradientExchange, held: dict[str, Any] | None) -> None:
        inherit(Successor(exchange), held, self.policy)

    def _save(self, exchange: GradientExchange) -> dict[str, Any]:
        return saved_state.save(exchange)

    def _total(self, exchange: GradientExchange) -> dict[str, Any]:
        return Successor(exchange).total()
