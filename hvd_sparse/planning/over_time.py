"""The plan over time: how often ranks meet, what a meeting sends, and how late that arrives.

The time to a loss is the time of a step, times the steps that it takes. What does not hide behind
local steps makes steps longer; what ranks hold back, and what arrives late, makes more of them. The
first factor is predicted from measured numbers, the second by a model of measured trainings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from hvd_sparse.compression import Dense, LocalSteps
from hvd_sparse.compression.base import SparseCompression
from hvd_sparse.compression.buckets import Layer, fragments_of
from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.compression.parts import AUTO, Wire
from hvd_sparse.compression.record import compression_of, record_of
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.planning import costs, records
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.plan import BucketChoice, entries_to_send, fixed_choices
from hvd_sparse.planning.profile import Machine

EVERY = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
FRAGMENTS = (1, 2, 4, 8)
DENSITIES = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3)
# Fraction by which an exchange may turn out longer than predicted and still hide.
RESERVE = 0.25
# Passes over a fragment that its meeting takes on the thread of the steps, besides selecting: its
# difference, a copy of its weights, and moving them.
_PASSES = 3


@dataclass(frozen=True, kw_only=True)
class PlanOverTime(records.Saved):
    """The local steps and the exchange that are predicted to reach a loss first.

    Attributes:
        compression: The record of a compression that a user could have written.
        compute_seconds: Seconds of a step that exchanges nothing.
        exchange_seconds: Predicted seconds of the exchange of a fragment.
        step_seconds: Predicted seconds of a step.
        steps: Predicted steps to a loss, over those of dense sums in every step.
    """

    KIND: ClassVar[str] = "hvd_sparse plan over time"
    VERSION: ClassVar[int] = 1

    compression: dict[str, Any]
    compute_seconds: float
    exchange_seconds: float
    step_seconds: float
    steps: float

    def __post_init__(self) -> None:
        records.check_finite(self)
        compression_of(self.compression)  # raises InvalidArgumentError unless it is one

    @property
    def chosen(self) -> SparseCompression | Dense:
        """The compression, which is not adaptive, with its local steps."""
        made = compression_of(self.compression)
        assert isinstance(made, SparseCompression | Dense)
        return made

    @property
    def local_steps(self) -> LocalSteps:
        """The local steps, of a fixed number."""
        steps: LocalSteps = self.chosen.local_steps
        return steps

    @property
    def slowdown(self) -> float:
        """Predicted time to a loss, over that of dense's steps without any exchange."""
        return self.steps * self.step_seconds / self.compute_seconds

    def choices(self, layers: Sequence[Layer]) -> tuple[BucketChoice, ...]:
        """Returns the buckets of these layers."""
        return fixed_choices(layers, self.chosen)


def steps_to_a_loss(every: int, density: float, delay: int) -> float:
    """Returns the steps that local steps take to a loss, over those of dense sums in every step.

    Args:
        every: Steps from one meeting to the next.
        density: Fraction of a difference that a meeting sends.
        delay: Steps after which what was sent is applied.
    """
    return 1 + 0.02 * math.sqrt(every) / math.pow(density, 0.25) + 0.005 * delay


class PlannerOverTime:
    """Plans for one model and one network.

    Args:
        layers: The layers that a meeting exchanges, in the order in which they are sent.
        others: Entries of all parameters besides, which the host sums.
        compression: The user's compression, with an adaptive density and `local_steps="auto"`. Its
            density is the least.
        network: The network.
        machine: The machine of each rank.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        compression: SparseCompression,
        *,
        others: int,
        network: Network,
        machine: Machine,
    ) -> None:
        self._layers = layers
        self._others = others
        self._compression = replace(compression, adaptive=False, warmup=None)
        self._network, self._machine = network, machine
        self._exchange = lru_cache(self._cheapest)

    def best(self, compute_seconds: float, *, stretch: float = 1.0) -> PlanOverTime:
        """Returns the plan by which a loss is reached first.

        Args:
            compute_seconds: Seconds of a step that exchanges nothing, on the slowest rank.
            stretch: What exchanges took, over their predictions.
        """
        plans = (
            self.predicted(compression, compute_seconds, stretch=stretch)
            for compression in self._possible()
        )
        return min(plans, key=lambda plan: plan.slowdown)

    def first(self) -> PlanOverTime:
        """Returns the plan of the first steps, whose time is not known: a few, and then a wait."""
        steps = replace(self._compression.local_steps, every=4)
        compression = self._with(max(0.1, self._compression.density), steps)
        return self.predicted(compression, 1.0)

    def predicted(
        self,
        compression: SparseCompression | Dense,
        compute_seconds: float,
        *,
        stretch: float = 1.0,
    ) -> PlanOverTime:
        """Returns the plan that consists of a compression, with its predicted times."""
        steps: LocalSteps = compression.local_steps
        fragments = fragments_of(self._layers, steps.fragments)
        largest = max(sum(layer.numel for layer in group) for group in fragments)
        cost = self._exchange(largest, compression.density)
        others = self._network.dense.seconds(4 * self._others / len(fragments))
        exchange = stretch * (cost.seconds - cost.taking + others)
        machine = self._machine
        taking = machine.select_seconds((1 + _PASSES) * largest)
        waits = max(0.0, (1 + RESERVE) * exchange - steps.delay * compute_seconds)
        per_step = len(fragments) / steps.first * (taking + waits)
        return PlanOverTime(
            compression=record_of(compression),
            compute_seconds=compute_seconds,
            exchange_seconds=exchange,
            step_seconds=compute_seconds + per_step,
            steps=steps_to_a_loss(steps.first, compression.density, steps.delay),
        )

    def _possible(self) -> Iterator[SparseCompression | Dense]:
        given = self._compression.local_steps
        least = self._compression.density
        densities = sorted({least, *(one for one in DENSITIES if one > least), 1.0})
        for every in EVERY:
            for fragments in (one for one in FRAGMENTS if one <= every):
                longest = every // fragments
                for delay in sorted({0, 1, 2, longest // 2, longest} & set(range(longest + 1))):
                    steps = replace(given, every=every, fragments=fragments, delay=delay)
                    for density in densities:
                        yield self._with(density, steps)

    def _with(self, density: float, steps: LocalSteps) -> SparseCompression | Dense:
        """Returns the compression at a density, with the cheapest exchange of so many entries."""
        own = self._compression
        numel = sum(layer.numel for layer in self._layers) // steps.fragments
        cost = self._exchange(numel, density)
        if density == 1.0:
            return Dense(
                values=cost.values, layers=own.layers, feedback=own.feedback, local_steps=steps
            )
        return replace(
            own,
            density=density,
            local_steps=steps,
            collective=cost.collective,
            wire=Wire(values=cost.values, indices=cost.wire),
        )

    def _cheapest(self, numel: int, density: float) -> costs.Choice:
        own = self._compression
        wants: dict[str, Any] = {"network": self._network, "machine": self._machine}
        if density == 1.0:
            values = ("int8",) if own.values == AUTO else (own.values,)
            return costs.cheapest(
                k=numel, numel=numel, allowed=(SHARD_SUM,), values=values, **wants
            )
        name = own.collective_name
        return costs.cheapest(
            k=entries_to_send(numel, density),
            numel=numel,
            allowed=("allgather", "recursive_doubling") if name == AUTO else (name,),
            wires=("packed",) if own.indices == AUTO else (own.indices,),
            values=("int4",) if own.values == AUTO else (own.values,),
            sparsifier=as_sparsifier(own.sparsifier).name,
            collective_options=own.collective_options,
            **wants,
        )
