"""The exchange of some variables' gradients, from one world of ranks to the next.

Functions that were traced go on with the exchange of the next ranks: it has the variables of the
one before, and its driver that driver's number.
"""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd

from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.ranks.world import World, in_elastic_job
from hvd_sparse.state import renewal
from hvd_sparse.state.inheritance import inherit
from hvd_sparse.tensorflow import saved_state
from hvd_sparse.tensorflow.blueprint import Blueprint
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.graph_state import GraphState
from hvd_sparse.tensorflow.inheritance import Heir


class Renewal(renewal.Renewal[GradientExchange]):
    """Builds an exchange when it is needed, and gives it up with its world.

    Args:
        blueprint: The same on all ranks.
        process_set: Horovod's.

    Attributes:
        blueprint: As given.
        process_set: As given.
        stand_in: In place of an exchange for a rank of an elastic job that is alone: gradients stay
            what they are. What this rank held before waits meanwhile.
    """

    def __init__(self, blueprint: Blueprint, process_set: Any) -> None:
        super().__init__()
        self.blueprint = blueprint
        self.process_set = process_set
        self.stand_in: GradientExchange | None = None
        self._graph = GraphState(blueprint.prefix)
        self._committed: dict[str, Any] | None = None

    @property
    def current(self) -> GradientExchange | None:
        """What averages gradients now; None while there is nothing that does, or has ended."""
        current = self.exchange or self.stand_in
        return None if current is None or current.closed else current

    @property
    def holder(self) -> GradientExchange | None:
        """What holds this rank's residuals now, and may have ended."""
        return self.exchange or self._former

    def give_up(self) -> None:
        """Ends the exchange, since its ranks are no longer what they were."""
        super().give_up()
        if self.stand_in is not None:
            self.stand_in.close()
            self.stand_in = None

    def commit(self) -> None:
        """Remembers what this rank holds, between two steps."""
        self._committed = self.held if self.exchange is None else self._save(self.exchange)

    def restore(self) -> None:
        """Gives the exchange up; the next one takes over what was there at the last commit."""
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
        exchange.load({}, {}, {}, step=0, rate=0.0)  # the variables may be those of one before
        if world.size == 1 and in_elastic_job():
            self.stand_in = exchange
            return None
        return exchange

    def _inherit(self, exchange: GradientExchange, held: dict[str, Any] | None) -> None:
        inherit(Heir(exchange), held, self.policy)

    def _save(self, exchange: GradientExchange) -> dict[str, Any]:
        return saved_state.save(exchange)

    def _total(self, exchange: GradientExchange) -> dict[str, Any]:
        return Heir(exchange).total()
