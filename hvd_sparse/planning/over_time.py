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
from typing import Any, ClassVar, NamedTuple

from hvd_sparse.compression import Dense, LocalSteps
from hvd_sparse.compression.base import SparseCompression
from hvd_sparse.compression.buckets import Layer, fragments_of
from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.compression.parts import AUTO, Collective, Wire
from hvd_sparse.compression.record import compression_of, record_of
from hvd_sparse.planning import costs, records
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.plan import BucketChoice, entries_to_send, fixed_choices
from hvd_sparse.planning.profile import Machine

# Local steps before the first plan that follows from measured times, and those of them not timed.
FIRST, SKIPPED = 8, 2
EVERY = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
FRAGMENTS = (1, 2, 4, 8)
DENSITIES = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3)
_COLLECTIVES = ("allgather", "shard_topk")
# Fraction by which an exchange may turn out longer than predicted and still hide.
RESERVE = 0.25
# Passes over a fragment that its meeting takes on the thread of the steps, besides selecting: its
# difference, a copy of its weights, and moving them; and seconds besides, whatever its size.
_PASSES, _MEETING_SECONDS = 3, 1e-3


@dataclass(frozen=True, kw_only=True)
class PlanOverTime(records.Saved):
    """The local steps and the exchange that are predicted to reach a loss first.

    Attributes:
        compression: The record of a compression that a user could have written.
        compute_seconds: Seconds of a step that exchanges nothing.
        work_seconds: Predicted seconds in which a step's share of meetings keeps a core busy.
        exchange_seconds: Predicted seconds of the exchange of a fragment.
        step_seconds: Predicted seconds of a step.
        steps: Predicted steps to a loss, over those of dense sums in every step.
    """

    KIND: ClassVar[str] = "hvd_sparse plan over time"
    VERSION: ClassVar[int] = 1

    compression: dict[str, Any]
    compute_seconds: float
    work_seconds: float
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
        """Returns the buckets of these layers: small ones, too, all of whose entries are sent."""
        chosen = self.chosen
        choices = fixed_choices(layers, chosen)
        if not chosen.layers.layer_wise:
            return choices
        small = {layer.name for layer in layers if layer.numel < chosen.layers.min_numel}
        densities = [
            tuple(1.0 if name in small else chosen.density for name in choice.layers)
            for choice in choices
        ]
        return tuple(
            replace(choice, densities=own) for choice, own in zip(choices, densities, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What was seen of a training, by which plans are made.

    Attributes:
        compute: Seconds of a step that exchanges nothing, on the slowest rank.
        drag: Seconds by which a second of work for meetings lengthens the steps beside it: 0 if
            there is a core for it, 1 if there is none.
        stretch: What exchanges took, over their predictions.
        lag: Seconds by which the ranks come to a meeting one after the other.
        most_steps: The most steps to a loss, over dense's, that a plan may be predicted to take:
            fewer once the training was seen to learn badly.
    """

    compute: float
    drag: float = 1.0
    stretch: float = 1.0
    lag: float = 0.0
    most_steps: float = math.inf


def steps_to_a_loss(every: int, density: float, delay: int) -> float:
    """Returns the steps that local steps take to a loss, over those of dense sums in every step.

    A model fitted to trainings of one small transformer, 4 ranks, half-way through 1,000 steps; its
    root mean square error there is .03 (docs/learning.md). It may be below 1: with `lr_scale`, the
    ranks move further in a step than dense sums let them.

    Args:
        every: Steps from one meeting to the next.
        density: Fraction of a difference that a meeting sends: an entry waits for 1 / density - 1
            meetings.
        delay: Steps after which what was sent is applied.
    """
    return 0.85 + 0.025 * every + 0.005 * (1 / density - 1) + 0.048 * delay


class _Prices(NamedTuple):
    """Predicted seconds of a way to meet, by step, and the steps to a loss over dense's."""

    work: float
    exchange: float
    step: float
    steps: float

    @property
    def time(self) -> float:
        """Seconds to a loss, over dense's steps."""
        return self.step * self.steps


def _ways() -> Iterator[tuple[int, int, int]]:
    """Yields numbers of local steps, of fragments and of steps of delay."""
    for every in EVERY:
        for fragments in (one for one in FRAGMENTS if one <= every):
            longest = every // fragments
            for delay in sorted({0, 1, 2, longest // 2, longest} & set(range(longest + 1))):
                yield every, fragments, delay


class PlannerOverTime:
    """Plans for one model and one network.

    Args:
        layers: All parameters, in the order in which they are sent.
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
        network: Network,
        machine: Machine,
    ) -> None:
        self._layers = layers
        self._compression = replace(compression, adaptive=False, warmup=None)
        self._network, self._machine = network, machine
        self._at_once = Network.assumed(network.size, math.inf, 0.0)  # what is left is work
        self._sizes, self._cost = lru_cache(self._fragments), lru_cache(self._cost_of)
        self._forms = lru_cache(self._form)

    def best(self, seen: Observed) -> PlanOverTime:
        """Returns the plan by which a loss is reached first."""
        given, least = self._compression.local_steps, self._compression.density
        densities = sorted({least, *(one for one in DENSITIES if one > least), 1.0})
        priced = [
            (self._prices(*way, density, seen), way, density)
            for way in _ways()
            for density in densities
        ]
        most = max(seen.most_steps, min(prices.steps for prices, _, _ in priced))
        allowed = (
            (prices.time, way, density) for prices, way, density in priced if prices.steps <= most
        )
        _, (every, fragments, delay), density = min(allowed)
        steps = replace(given, every=every, fragments=fragments, delay=delay)
        return self.predicted(self._with(density, steps), seen)

    def first(self) -> PlanOverTime:
        """Returns the plan of the first steps, whose time is not known: a few, and then a wait."""
        steps = replace(self._compression.local_steps, every=FIRST)
        compression = self._with(max(0.1, self._compression.density), steps)
        return self.predicted(compression, Observed(compute=1.0))

    def predicted(self, compression: SparseCompression | Dense, seen: Observed) -> PlanOverTime:
        """Returns the plan that consists of a compression, with its predicted times."""
        steps: LocalSteps = compression.local_steps
        prices = self._prices(steps.first, steps.fragments, steps.delay, compression.density, seen)
        return PlanOverTime(
            compression=record_of(compression),
            compute_seconds=seen.compute,
            work_seconds=prices.work,
            exchange_seconds=prices.exchange,
            step_seconds=prices.step,
            steps=prices.steps,
        )

    def _prices(
        self, every: int, fragments: int, delay: int, density: float, seen: Observed
    ) -> _Prices:
        """Returns what a way to meet is predicted to take."""
        largest, count = self._sizes(fragments)
        cost = self._cost(largest, density, self._network)
        exchange = seen.stretch * (cost.seconds - cost.taking)
        taking = self._machine.select_seconds((1 + _PASSES) * largest)
        meetings = count / every  # in each step
        coding = self._cost(largest, density, self._at_once).seconds
        work = meetings * (_MEETING_SECONDS + taking + coding)
        step = seen.compute + seen.drag * work
        waits = max(0.0, seen.lag + (1 + RESERVE) * exchange - delay * step)
        steps = steps_to_a_loss(every, density, delay)
        return _Prices(work, exchange, step + meetings * waits, steps)

    def _fragments(self, count: int) -> tuple[int, int]:
        """Returns the entries of the largest of so many fragments, and how many there are."""
        fragments = fragments_of(self._layers, count)
        return max(sum(layer.numel for layer in group) for group in fragments), len(fragments)

    def _with(self, density: float, steps: LocalSteps) -> SparseCompression | Dense:
        """Returns the compression at a density, with these local steps."""
        own = self._compression
        collective, wire, values = self._forms(density)
        if density == 1.0:
            return Dense(values=values, layers=own.layers, feedback=own.feedback, local_steps=steps)
        assert isinstance(own.collective, Collective)
        return replace(
            own,
            density=density,
            local_steps=steps,
            collective=replace(own.collective, name=collective),
            wire=Wire(values=values, indices=wire),
        )

    def _form(self, density: float) -> tuple[str, str, str]:
        """Returns the collective, the wire and the type of values: as given, else the shortest.

        The collective is one that applies all that the ranks select, now or as soon as it is large
        enough, as in the trainings by which steps are predicted.
        """
        own = self._compression
        if density == 1.0:
            return SHARD_SUM, "plain", "int8" if own.values == AUTO else own.values
        wire = "packed" if own.indices == AUTO else own.indices
        values = "int4" if own.values == AUTO else own.values
        names = _COLLECTIVES if own.collective_name == AUTO else (own.collective_name,)
        forms = [(name, wire, values) for name in names]
        numel = sum(layer.numel for layer in self._layers)
        return min(
            forms, key=lambda form: self._cost_as(form, numel, density, self._network).seconds
        )

    def _cost_of(self, numel: int, density: float, network: Network) -> costs.Cost:
        """Returns the cost of the exchange of a fragment."""
        return self._cost_as(self._forms(density), numel, density, network)

    def _cost_as(
        self, form: tuple[str, str, str], numel: int, density: float, network: Network
    ) -> costs.Cost:
        """Returns the cost of an exchange with such a collective, wire and type of values."""
        collective, wire, values = form
        own = self._compression
        return costs.cost(
            collective,
            k=entries_to_send(numel, density),
            numel=numel,
            network=network,
            machine=self._machine,
            wire=wire,
            values=values,
            collective_options=own.collective_options,
            nodes_first=density < 1 and own.nodes_first is True,
        )
