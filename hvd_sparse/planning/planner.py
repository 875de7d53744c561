"""The planner: from measured numbers to a plan. Pure functions, the same result on every machine.

1. Merge layers into buckets so that the step is shortest with every layer at the floor density.
2. Raise the densities as far as the step stays that short.
3. Give each bucket the collective and the wire that are cheapest by the model; or dense.
4. Make the plan dense if all that is not faster than a dense step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hvd_sparse.compression import Compression
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.compression.checks import checked_density
from hvd_sparse.compression.collectives import COLLECTIVES
from hvd_sparse.compression.parts import AUTO, MAX_BUCKET_NUMEL, Adaptive
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.places.place import OnCpu, Place
from hvd_sparse.planning import costs
from hvd_sparse.planning.account import WIRES, Array
from hvd_sparse.planning.densities import (
    LARGEST_SPARSE,
    Ladder,
    notches_between,
    paper_densities,
    simulated_densities,
)
from hvd_sparse.planning.merging import Merged, Offer, merge_layers
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.pipeline import simulate, simulate_dense
from hvd_sparse.planning.plan import DENSE, BucketPlan, Plan
from hvd_sparse.planning.profile import LayerProfile, Machine, Profile

# Types of values that a plan may choose if the user leaves the choice to it: those that learn as
# well as float32 (docs/many_ranks.md).
VALUES = ("float32", "int4")
DENSE_VALUES = ("float32", "bfloat16", "int8")
# With more layers, neighbours are glued before merging, whose time grows with their square or more.
MOST_MERGED = 400
# `Rules.reserve` of plans for users: exchanges may take so much longer than predicted, and those
# that were just hidden would then lengthen the step.
RESERVE = 0.5


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules by which a plan is made.

    Args:
        density: Floor of the densities: the fraction that every layer sends at least.
        adaptive: True if densities may rise above the floor.
        rule: "simulated": optimal merging, and densities by the simulated step; "paper": the
            merging of OMGS-SGD and the neighbour rule of LAGS.
        layer_wise: True to select and send layers one by one; else the whole model at once.
        collectives: Sparse collectives allowed; None: all that this build has.
        wires: Wire formats allowed.
        dense: True if a bucket, or the whole plan, may be dense.
        dense_sums: Sums allowed for a dense bucket, from `costs.DENSE_SUMS`.
        select_on: The thread that selects: "caller" or "engine"; see `simulate`.
        overlap: How alike the ranks choose, in [0, 1]; see costs.Setting.
        collective_options: Options of collectives, by name, as a compression has them.
        values: Types of values allowed on the wire; see `Setting`.
        dense_values: Types of values allowed in `dense_sums`.
        nodes_first: Whether the ranks of a node may add up their residuals first: (False,), (True,)
            or both.
        stretch: Fraction by which larger densities may lengthen the step.
        margin: Fraction by which a dense step must be longer for a plan to be sparse at all.
        reserve: Fraction by which exchanges may turn out longer than predicted without making the
            step longer.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.
    """

    density: float = 0.001
    adaptive: bool = True
    rule: str = "simulated"
    layer_wise: bool = True
    collectives: Sequence[str] | None = None
    wires: Sequence[str] = ("plain",)
    dense: bool = True
    dense_sums: Sequence[str] = (DENSE,)
    select_on: str = "caller"
    overlap: float = 0.0
    collective_options: Mapping[str, float] = field(default_factory=dict)
    values: Sequence[str] = ("float32",)
    dense_values: Sequence[str] = ("float32",)
    nodes_first: Sequence[bool] = (False,)
    stretch: float = 0.0
    margin: float = 0.02
    reserve: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "density", checked_density("density", self.density))
        if self.rule not in Adaptive.RULES:
            raise InvalidArgumentError(
                f"rule must be one of {list(Adaptive.RULES)}, got {self.rule!r}"
            )
        for name in ("stretch", "margin", "reserve"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidArgumentError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name, allowed in (("collectives", costs.SPARSE), ("dense_sums", costs.DENSE_SUMS)):
            wrong = set(getattr(self, name) or ()) & (set(costs.NAMES) - set(allowed))
            if wrong:
                raise InvalidArgumentError(
                    f"{name} must be of {list(allowed)}, got {sorted(wrong)}"
                )

    @property
    def allowed(self) -> tuple[str, ...]:
        """The sparse collectives that may be chosen."""
        return tuple(COLLECTIVES if self.collectives is None else self.collectives)


def rules_of(compression: Compression, place: Place | type[Place] = OnCpu) -> Rules:
    """Returns the rules of a user's adaptive compression, for gradients of a (kind of) place.

    Collectives that return entries to the ranks that selected them are taken only where the user
    names one: a step with them is faster, and learns less.
    """
    collectives = tuple(
        name for name, facts in COLLECTIVES.items() if facts.delivers_all or facts.has_owners
    )
    nodes_first = compression.nodes_first
    if nodes_first == AUTO:
        nodes = (False, True) if place.adds_up_nodes else (False,)
    else:
        nodes = (bool(nodes_first),)
    if compression.collective_name != AUTO:
        collectives = (compression.collective_name,)
    adaptive = compression.adaptive
    return Rules(
        density=compression.density,
        rule=adaptive.rule if isinstance(adaptive, Adaptive) else "simulated",
        layer_wise=compression.layers.layer_wise,
        collectives=collectives,
        wires=WIRES if compression.indices == AUTO else (compression.indices,),
        collective_options=compression.collective_options,
        values=VALUES if compression.values == AUTO else (compression.values,),
        dense_values=DENSE_VALUES if compression.values == AUTO else (compression.values,),
        dense_sums=costs.DENSE_SUMS,
        nodes_first=nodes,
        select_on=place.select_on,
        reserve=RESERVE,
    )


def make_plan(profile: Profile, rules: Rules | None = None) -> Plan:
    """Returns the plan with the shortest predicted step, and of these the one that sends most.

    Takes about a second for any number of layers. The same arguments give the same plan, bit for
    bit, on one machine; ranks on several machines get the plan of one of them.

    Args:
        profile: The profile, as measured.
        rules: Rules by which to choose; None: the defaults.

    Raises:
        InvalidArgumentError: None of the collectives is possible between these ranks.
    """
    return _Planner(profile, rules or Rules()).plan()


def exchanges_alone(layers: Sequence[Layer], network: Network, machine: Machine) -> Profile:
    """Returns a profile as if computing took no time: its plans have the times of exchanges."""
    none = [LayerProfile(name=one.name, numel=one.numel, backward=0.0) for one in layers]
    return Profile(layers=tuple(none), forward=0.0, network=network, machine=machine)


def least_plan(profile: Profile, rules: Rules) -> Plan:
    """Returns the sparse plan that sends the least."""
    return make_plan(profile, replace(rules, adaptive=False, dense=False))


def dense_plan(profile: Profile) -> Plan:
    """Returns the plan of the host's dense allreduce, with the buckets of its tensor fusion."""
    simulated = simulate_dense(profile)
    buckets, first = [], 0
    for times in simulated.buckets:
        layers = profile.layers[first : first + times.layers]
        first += times.layers
        buckets.append(
            BucketPlan(
                layers=tuple(layer.name for layer in layers),
                numels=tuple(layer.numel for layer in layers),
                densities=(1.0,) * len(layers),
                collective="dense",
                wire="plain",
                select_seconds=0.0,
                exchange_seconds=times.end - times.start,
            )
        )
    return Plan(
        buckets=tuple(buckets),
        size=profile.network.size,
        step_seconds=simulated.step,
        dense_seconds=simulated.step,
        compute_seconds=profile.compute,
    )


class _Planner:
    """The steps of `make_plan`, with the profile and the rules that they share."""

    def __init__(self, profile: Profile, rules: Rules) -> None:
        self._profile, self._rules = profile, rules
        self._numels = np.array([layer.numel for layer in profile.layers], dtype=np.float64)

    def plan(self) -> Plan:
        """Returns the plan, by the steps at the top of this file."""
        dense = dense_plan(self._profile)
        if self._rules.dense and self._rules.density > LARGEST_SPARSE:
            return dense
        merged = self._merge()
        sparse = self._sparse_plan(merged, dense.step_seconds)
        won = sparse.step_seconds * (1 + self._rules.margin) < dense.step_seconds
        return sparse if not self._rules.dense or (won and not sparse.dense) else dense

    def _price(self, k: ArrayLike, numel: ArrayLike) -> costs.Table:
        """Returns the cheapest sparse exchanges."""
        return self._cheapest(k, numel, self._rules.allowed, self._rules.values)

    def _price_dense(self, numel: ArrayLike) -> costs.Table:
        """Returns the cheapest dense sums."""
        return self._cheapest(numel, numel, self._rules.dense_sums, self._rules.dense_values)

    def _cheapest(
        self, k: ArrayLike, numel: ArrayLike, allowed: Sequence[str], values: Sequence[str]
    ) -> costs.Table:
        return costs.cheapest_of(
            k,
            numel,
            network=self._profile.network,
            machine=self._profile.machine,
            allowed=allowed,
            wires=self._rules.wires,
            overlap=self._rules.overlap,
            collective_options=self._rules.collective_options,
            values=values,
            nodes=self._rules.nodes_first,
        )

    def _entries(self, density: float | Array) -> Array:
        """Returns the k of every layer; [..., layers] for densities [..., 1]."""
        ks: Array = np.minimum(self._numels, np.maximum(1, np.ceil(density * self._numels)))
        return ks

    def _merge(self) -> Merged:
        """Merges the layers: step 1."""
        if not self._rules.layer_wise:
            return Merged((len(self._profile.layers),), (0,))
        borders = self._borders()
        numel, k = (
            np.maximum(0, sums[np.newaxis, :] - sums[:-1, np.newaxis])
            for sums in (
                np.concatenate([[0], np.cumsum(ones)])[borders]
                for ones in (self._numels, self._entries(self._rules.density))
            )
        )
        machine = self._profile.machine
        impossible = np.where(numel > MAX_BUCKET_NUMEL, np.inf, 0.0)
        np.fill_diagonal(impossible[:, 1:], 0.0)
        sparse = self._price(k, numel)
        longer = 1 + self._rules.reserve
        select = machine.select_overhead + machine.select_seconds_per_entry * numel
        offers = [Offer(select, longer * sparse.seconds + impossible)]
        if self._rules.dense:
            dense = self._price_dense(numel)
            offers.append(Offer(dense.taking, longer * dense.exchange + impossible))
        rule = "optimal" if self._rules.rule == "simulated" else "omgs"
        glued = self._profile.glued(borders.tolist())
        merged = merge_layers(glued, offers, rule=rule, select_on=self._rules.select_on)
        ends = borders[np.cumsum([0, *merged.sizes])]
        return Merged(tuple(np.diff(ends).tolist()), merged.offers)

    def _borders(self) -> NDArray[np.int64]:
        """Returns the layers at which a bucket may begin, all unless they are many, and the end."""
        count = len(self._numels)
        borders = np.linspace(0, count, min(count, MOST_MERGED) + 1).round().astype(np.int64)
        too_large = np.add.reduceat(self._numels, borders[:-1]) > MAX_BUCKET_NUMEL
        apart = [np.arange(*borders[i : i + 2]) for i in np.flatnonzero(too_large)]
        found: NDArray[np.int64] = np.unique(np.concatenate([borders, *apart]))
        return found

    def _sparse_plan(self, merged: Merged, dense_seconds: float) -> Plan:
        """Chooses densities, collectives and wires: steps 2 and 3."""
        rules, profile = self._rules, self._profile
        priced = self._price_buckets(merged)
        notches = priced.start
        if rules.adaptive and rules.rule == "simulated":
            notches = simulated_densities(
                profile,
                merged.sizes,
                replace(priced.ladder, exchange=(1 + rules.reserve) * priced.ladder.exchange),
                select_on=rules.select_on,
                start=notches,
                stretch=rules.stretch,
            )
        elif rules.adaptive:
            raised = paper_densities(profile, merged.sizes, priced.ladder)
            notches = [max(pair) for pair in zip(notches, raised, strict=True)]
        buckets, first = [], 0
        for i, (size, notch) in enumerate(zip(merged.sizes, notches, strict=True)):
            buckets.append(priced.bucket(i, notch, profile.layers[first : first + size]))
            first += size
        plan = Plan(
            buckets=tuple(buckets),
            size=profile.network.size,
            step_seconds=0.0,
            dense_seconds=dense_seconds,
            compute_seconds=profile.compute,
        )
        simulated = simulate(profile, plan.stages(), select_on=rules.select_on)
        return replace(plan, step_seconds=simulated.step)

    def _price_buckets(self, merged: Merged) -> _Priced:
        """Prices the buckets at every density that they may have."""
        rules, machine = self._rules, self._profile.machine
        starts = np.concatenate([[0], np.cumsum(merged.sizes)])[:-1]
        numels = np.add.reduceat(self._numels, starts)
        densities = notches_between(rules.density) if rules.adaptive else (rules.density,)
        ks = np.add.reduceat(self._entries(np.array(densities)[:, np.newaxis]), starts, axis=1).T
        table = self._price(ks, numels[:, np.newaxis])
        select = np.array([machine.select_seconds(int(numel)) for numel in numels])
        dense = None
        goes_dense = np.zeros(numels.size, dtype=bool)
        exchange = table.seconds
        if rules.dense:
            dense = self._price_dense(numels)
            seconds = dense.exchange
            goes_dense = np.array(merged.offers) == 1
            if rules.rule == "paper" or not rules.layer_wise:  # the merging did not consider dense
                goes_dense |= dense.seconds <= select + exchange[:, 0]
            select = np.where(goes_dense, dense.taking, select)
            # A bucket goes dense at densities at which dense is cheaper, so it costs as much there.
            exchange = np.minimum(np.column_stack([exchange, seconds]), seconds[:, np.newaxis])
            densities = (*densities, 1.0)
        ladder = Ladder(
            densities,
            select,
            np.maximum.accumulate(exchange, axis=1),
        )
        start = [len(densities) - 1 if one else 0 for one in goes_dense]
        return _Priced(table, dense, ladder, start)


@dataclass(frozen=True)
class _Priced:
    """Prices of the buckets at every density.

    Attributes:
        table: [buckets, sparse notches], the cheapest sparse exchanges.
        dense: [buckets], the cheapest dense sums; None if none is allowed.
        ladder: Times of the buckets, for choosing densities.
        start: The notch at which each bucket begins: the floor, or dense.
    """

    table: costs.Table
    dense: costs.Table | None
    ladder: Ladder
    start: list[int]

    def bucket(self, i: int, notch: int, layers: Sequence[LayerProfile]) -> BucketPlan:
        """Returns bucket i at a notch."""
        sparse = notch < self.table.seconds.shape[1] and (
            self.dense is None or self.table.seconds[i, notch] < self.dense.exchange[i]
        )
        at: tuple[int, ...]
        if sparse:
            table, at = self.table, (i, notch)
            density, select = self.ladder.densities[notch], float(self.ladder.select[i])
        else:
            assert self.dense is not None
            table, at = self.dense, (i,)
            density, select = 1.0, float(self.dense.taking[i])
        collective, form = table.options[table.chosen[at]]
        return BucketPlan(
            layers=tuple(layer.name for layer in layers),
            numels=tuple(layer.numel for layer in layers),
            densities=(density,) * len(layers),
            collective=collective,
            wire=form.wire,
            values=form.values,
            nodes_first=form.nodes_first,
            route=form.route(collective),
            select_seconds=select,
            exchange_seconds=float(table.exchange[at]),
        )
