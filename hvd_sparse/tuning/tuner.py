"""Tunes an adaptive compression: measures, plans, compares, and goes dense where that is faster.

    FIRST      a few sparse steps, in which layers are timed, where the network shows that dense
               ones lose; else this is left out
    DENSE      a few dense steps, in which layers and steps are timed
    PLANNING   rank 0 makes a plan from all ranks' times and sends it to all
    SPARSE     a few steps that follow the plan, and are timed
    JUDGING    rank 0 compares, and tells all ranks which kind of step follows; or, once, if sparse
               steps took longer than predicted, sends a second plan, which sends as little as it
               may: back to SPARSE
    SETTLED    until it is time to begin again

If a warm-up changes the floor of the plan, it begins again, too; but where sparse steps are far
ahead, with PLANNING, from the known times, since dense steps would take longer. A warm-up's density
is lowered as far as its steps would take much longer than those that follow it.

All ranks enter the stages at the same steps: a stage lasts a fixed number of steps, whatever a rank
has measured in them, and rank 0 makes every decision that depends on measured times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hvd_sparse import log
from hvd_sparse.compression import Adaptive, Compression
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.places.place import OnCpu, Place
from hvd_sparse.places.step_clock import Reading
from hvd_sparse.planning import records
from hvd_sparse.planning.calibrate import calibrated, delayed
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.pipeline import simulate_dense
from hvd_sparse.planning.plan import DENSE, Plan
from hvd_sparse.planning.planner import exchanges_alone, least_plan, make_plan, rules_of
from hvd_sparse.planning.profile import Machine, Profile
from hvd_sparse.tuning.decision import Channel, Decision
from hvd_sparse.tuning.measure import DENSE_SUM_BYTES
from hvd_sparse.tuning.settled_state import SettledState
from hvd_sparse.tuning.stages import FAR_AHEAD, Stage, Tuning
from hvd_sparse.tuning.step_rows import (
    Rows,
    known,
    measured_times,
    median_or_nan,
    profile_of,
    slowest_step,
)
from hvd_sparse.tuning.verdict_text import verdict

# Steps of a kind before the timed ones, in which caches, connections and thresholds settle.
SKIPPED_STEPS = 2
TIMED_STEPS = 5
# Fraction of a dense step's time by which sparse steps must be shorter; otherwise gradients are
# exchanged dense. For noise, and for what a step learns less if it holds all entries back, nearly:
# at density .01 small models took .9 to 1.3 times dense's steps to a loss (docs/learning.md).
MARGIN = 0.05
HELD_BACK_MARGIN = 0.15
# Multiple of a plan's time that the host's sums alone must be predicted to take for the first steps
# to be sparse: the times of computing are not known then.
SURE = 4.0
# Seconds of such sums up to which the first steps are dense in any case, since they cost little.
CHEAP = 0.05
# Multiple of the time of the steps that follow a warm-up which its own steps may take.
WARMUP_STRETCH = 1.5
# Excess of sparse steps over their prediction that asks for a second plan.
SURPRISE = 0.02
# Fraction of the time that comparisons may cost, and the fewest steps between two of them.
COMPARISON_SHARE = 0.01
LEAST_SETTLED_STEPS = 1000

# A decision arrives at the end of the second step after the last timed one.
_DECISION_STEPS = 2


_TIMED = (Stage.FIRST, Stage.DENSE, Stage.SPARSE)
# Fields of a Tuning that a checkpoint contains as they are.
_SETTLED = (
    "machine", "profile", "plan", "dense_seconds", "sparse_seconds", "sparse", "settled_steps",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Verdict(records.Saved):
    """Rank 0's verdict on timed sparse steps.

    Attributes:
        sparse_seconds: Time of a sparse step on the slowest rank; None if no rank could time one.
        second_plan: A plan to try next; None if the comparison is over.
    """

    KIND: ClassVar[str] = "hvd_sparse verdict"
    VERSION: ClassVar[int] = 1

    sparse_seconds: float | None
    second_plan: Plan | None


class Tuner:
    """Decides how the gradients of the next step are exchanged.

    Args:
        layers: Layers that can be sparse.
        compression: An adaptive compression.
        network: The measured network; the same on all ranks.
        machine: The measured machine; the same on all ranks.
        channel: Channel between the ranks.
        rank: This rank; rank 0 decides.
        keeps_order: True if gradients are sent in the order of `layers`; otherwise in the order in
            which they become ready.
        place: Device of the gradients; None: the CPU.

    Attributes:
        tuning: State of tuning.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        compression: Compression,
        *,
        network: Network,
        machine: Machine,
        channel: Channel,
        rank: int,
        keeps_order: bool = False,
        place: Place | None = None,
    ) -> None:
        self._place = place or OnCpu()
        self._rules = rules_of(compression, self._place)
        select_on = self._rules.select_on
        self.tuning = Tuning(network=network, machine=machine, select_on=select_on)
        self._layers = tuple(layers)
        self._compression = compression
        assert isinstance(compression.adaptive, Adaptive)
        self._every = compression.adaptive.every
        self._channel = channel
        self._is_rank0 = rank == 0
        self._keeps_order = keeps_order
        self._readings: list[Reading] = []
        self._steps = 0  # of this stage
        self._floor = self._floor_after(0)  # of all densities, for which the plan holds
        self._decision: Decision | None = None
        self._first: Tuning | None = None  # the first plan, timed, while a second one is tried
        self._said: bool | None = None
        self._begin(network)

    def restart(self, network: Network) -> None:
        """Begins again, on a newly measured network; called between two steps, on all ranks."""
        if self._decision is not None:
            self._decision.close()
        self._decision = self._first = None
        self._begin(network)

    def _begin(self, network: Network) -> None:
        unknown = {"network": network, "plan": None, "profile": None, "dense_seconds": None}
        self._enter(Stage.DENSE, sparse=False, **unknown)
        profile = exchanges_alone(self._layers, network, self.tuning.machine)
        dense = simulate_dense(profile).step
        if dense <= CHEAP:  # as on most networks, where a plan would only delay the first step
            return
        plan = least_plan(profile, self._rules)
        if dense > SURE * plan.step_seconds:
            self._enter(Stage.FIRST, sparse=True, plan=plan)

    def state(self) -> str | None:
        """Returns the settled state as text for a checkpoint; None while a comparison is under way.

        The text is the same on all ranks.
        """
        found = self.tuning
        if found.stage is not Stage.SETTLED or found.profile is None or found.plan is None:
            return None
        return SettledState(
            network=found.network,
            steps=self._steps,
            floor=self._floor,
            **{name: getattr(found, name) for name in _SETTLED},
        ).to_json()

    def load(self, state: str | None, *, steps: int) -> Tuning:
        """Restores a state, between two steps and on all ranks alike.

        Args:
            state: A result of `state`; None: begins again, on the known network.
            steps: Number of training steps that were over when it was taken.

        Returns:
            The tuning in force from the next step on.

        Raises:
            InvalidArgumentError: The state is of other layers, or another number of ranks.
        """
        if state is None:
            self.restart(self.tuning.network)
            return self.tuning
        settled = SettledState.from_json(state)
        settled.check(self._layers, size=self.tuning.network.size)
        self.restart(settled.network)
        self._enter(Stage.SETTLED, **{name: getattr(settled, name) for name in _SETTLED})
        self._steps = settled.steps
        self._floor = self._floor_after(steps) if settled.floor is None else settled.floor
        self._said = settled.sparse
        return self.tuning

    @property
    def times_next_step(self) -> bool:
        """True if the times of the next step will count."""
        return self.tuning.stage in _TIMED and self._steps >= SKIPPED_STEPS

    def end_step(self, reading: Reading | None, *, steps: int) -> Tuning | None:
        """Counts a step, on all ranks alike.

        Args:
            reading: Reads the step's times, if this rank has them; called, if at all, at the end of
                the last timed step.
            steps: Number of training steps that are over.

        Returns:
            The tuning from the next step on, if `sparse` or `plan` has changed; else None.
        """
        before = self.tuning
        if self.times_next_step and reading is not None:
            self._readings.append(reading)
        self._steps += 1
        if self._decision is not None:
            self._decision.end_step()
        else:
            self._advance(self._floor_after(steps))
        changed = self.tuning.sparse != before.sparse or self.tuning.plan is not before.plan
        return self.tuning if changed else None

    def _floor_after(self, steps: int) -> float:
        """Returns the lower limit of all densities after so many training steps."""
        warmup, final = self._compression.warmup, self._rules.density
        return final if warmup is None else warmup.density_at(steps, final)

    def _advance(self, floor: float) -> None:
        stage, timed = self.tuning.stage, self._steps >= SKIPPED_STEPS + TIMED_STEPS
        if stage is Stage.SETTLED:
            if floor != self._floor and self.tuning.is_far_ahead:
                self._floor = floor
                self._enter(Stage.PLANNING)
                measured = [floor, self._place.free_bytes()]
                self._decide(measured, self._make_plan_again, self._use_plan_again)
            elif floor != self._floor or self._steps >= self.tuning.settled_steps:
                self._enter(Stage.DENSE, sparse=False)
        elif stage in (Stage.FIRST, Stage.DENSE) and timed:
            self._floor = floor
            times = [read() for read in self._readings]
            measured = [*measured_times(times, len(self._layers)), self._place.free_bytes()]
            self._enter(Stage.PLANNING)
            self._decide(measured, self._make_plan, self._use_plan)
        elif stage is Stage.SPARSE and timed:
            step = median_or_nan([read().step for read in self._readings])
            self._enter(Stage.JUDGING)
            self._decide([step], self._judge, self._use_verdict)

    def _enter(self, stage: Stage, **changes: Any) -> None:
        self.tuning = replace(self.tuning, stage=stage, **changes)
        self._steps = 0
        self._readings.clear()

    def _decide(
        self,
        measured: Sequence[float],
        decide: Callable[[Rows], str],
        use: Callable[[Rows, str], None],
    ) -> None:
        def on_decided(rows: Rows, decided: str) -> None:
            self._decision = None
            use(rows, decided)

        self._decision = Decision(
            self._channel,
            measured,
            decide=decide if self._is_rank0 else lambda _: "",
            on_decided=on_decided,
        )

    def _profile(self, rows: Rows) -> Profile:
        profile = profile_of(
            rows,
            self._layers,
            network=self.tuning.network,
            machine=self.tuning.machine,
            keeps_order=self._keeps_order,
        )
        dense_step = None if self.tuning.sparse else known(slowest_step(rows))
        return profile if dense_step is None else calibrated(profile, dense_step)

    def _make_plan(self, rows: Rows) -> str:
        return self._plan_for(self._profile(rows), dense_sums=self._fitting(rows)).to_json()

    def _make_plan_again(self, rows: Rows) -> str:
        assert self.tuning.profile is not None
        return self._plan_for(self.tuning.profile, dense_sums=self._fitting(rows)).to_json()

    def _plan_for(self, profile: Profile, **rules: Any) -> Plan:
        least, floor = self._rules.density, self._floor

        def plan_at(density: float) -> Plan:
            return make_plan(profile, replace(self._rules, density=density, **rules))

        plan = plan_at(floor)
        if floor > least:
            most = WARMUP_STRETCH * plan_at(least).step_seconds
            while plan.step_seconds > most and floor > least:
                floor = max(least, floor / 2)
                plan = plan_at(floor)
        return plan

    def _fitting(self, rows: Rows) -> Sequence[str]:
        """Returns the dense sums for which there is memory on all ranks, whose rows end with it."""
        needed = DENSE_SUM_BYTES * sum(layer.numel for layer in self._layers)
        fits = min(row[-1] for row in rows) >= needed
        return self._rules.dense_sums if fits else (DENSE,)

    def _use_plan(self, rows: Rows, decided: str) -> None:
        plan, step = Plan.from_json(decided), known(slowest_step(rows))
        profile = self._profile(rows)
        if not self.tuning.sparse:
            self._try(plan, profile=profile, dense_seconds=step)
        elif step is not None and step < FAR_AHEAD * plan.dense_seconds and not plan.dense:
            self._try(plan, profile=profile)
        else:  # in doubt, dense steps are timed after all
            self._enter(Stage.DENSE, sparse=False)

    def _use_plan_again(self, _: Rows, decided: str) -> None:
        self._try(Plan.from_json(decided))

    def _try(self, plan: Plan, **found: Any) -> None:
        log.logger.debug("planned: %s", plan)
        if plan.dense:
            self._settle(sparse=False, plan=plan, sparse_seconds=None, **found)
        else:
            self._enter(Stage.SPARSE, sparse=True, plan=plan, sparse_seconds=None, **found)

    def _judge(self, rows: Rows) -> str:
        step = slowest_step(rows)
        return Verdict(sparse_seconds=known(step), second_plan=self._second_plan(step)).to_json()

    def _second_plan(self, step: float) -> Plan | None:
        profile, plan = self.tuning.profile, self.tuning.plan
        assert profile is not None
        assert plan is not None
        if self._first is not None or not step > (1 + SURPRISE) * plan.step_seconds:
            return None
        # Larger densities and dense sums are free only where cores have time for them, too.
        second = self._plan_for(self._delayed(profile, plan, step), adaptive=False, dense=False)
        return None if second.dense or second.decides_like(plan) else second

    def _delayed(self, profile: Profile, plan: Plan, step: float) -> Profile:
        return delayed(profile, plan, step, select_on=self._rules.select_on)

    def _use_verdict(self, _: Rows, decided: str) -> None:
        judged = Verdict.from_json(decided)
        found = replace(self.tuning, sparse_seconds=judged.sparse_seconds)
        if judged.second_plan is not None:
            assert judged.sparse_seconds is not None
            assert found.profile is not None
            assert found.plan is not None
            self._first = found
            self._enter(
                Stage.SPARSE,
                profile=self._delayed(found.profile, found.plan, judged.sparse_seconds),
                plan=judged.second_plan,
            )
            return
        best = min([self._first or found, found], key=lambda one: one.sparse_seconds or math.inf)
        self._first = None
        sparse, dense = best.sparse_seconds, best.dense_estimate
        # If no rank could time its steps, nothing shows that sparse ones are faster.
        assert best.plan is not None
        most = 1 - margin_of(best.plan)
        faster = sparse is not None and dense is not None and sparse < most * dense
        self._settle(sparse=faster, sparse_seconds=sparse, plan=best.plan, profile=best.profile)

    def _settle(self, **changes: Any) -> None:
        """Ends the comparison; logs the verdict the first time, and whenever it changes.

        During a warm-up it is silent: those plans say nothing about the steps that follow.
        """
        self._enter(Stage.SETTLED, **changes)
        steps = self._every if isinstance(self._every, int) else steps_between(self.tuning)
        self.tuning = replace(self.tuning, settled_steps=steps)
        if self._floor > self._rules.density:
            return
        if self._is_rank0 and self.tuning.sparse is not self._said:
            assert self.tuning.plan is not None
            asked = margin_of(self.tuning.plan)
            log.logger.log(*verdict(self.tuning, margin=MARGIN, sparse_margin=asked))
        self._said = self.tuning.sparse


def margin_of(plan: Plan) -> float:
    """Returns the fraction of a dense step's time by which a plan's steps must be shorter."""
    return MARGIN + HELD_BACK_MARGIN * plan.held_back


def steps_between(tuning: Tuning) -> int:
    """Returns the steps between two comparisons, enough that these cost a hundredth of the time."""
    sparse, dense = tuning.sparse_seconds, tuning.dense_estimate
    if not sparse or not dense:
        return LEAST_SETTLED_STEPS
    slowdown = max(sparse, dense) / min(sparse, dense) - 1
    compared = SKIPPED_STEPS + TIMED_STEPS + _DECISION_STEPS
    return max(LEAST_SETTLED_STEPS, round(compared * slowdown / COMPARISON_SHARE))
