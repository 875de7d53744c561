"""Tunes local steps: plans over time, from measured times, and again as these change.

The ranks meet after a few steps first. Then they follow a plan, and make another one after 4, 16,
64, ... intervals, from the median times of those that followed this one. If the training is seen
to learn badly (learning_guard.py), a more cautious plan follows at once. All ranks have the same
numbers of all ranks, and so make the same plan.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TypedDict

from hvd_sparse import log
from hvd_sparse.compression.base import SparseCompression
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.compression.parts import MOVE
from hvd_sparse.exchange.interval import Report
from hvd_sparse.places.step_clock import Reading
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.over_time import (
    EVERY,
    SKIPPED,
    Observed,
    PlannerOverTime,
    PlanOverTime,
    steps_to_a_loss,
)
from hvd_sparse.planning.profile import Machine
from hvd_sparse.planning.quantities import shown_seconds
from hvd_sparse.tuning.learning_guard import GuardState, LearningGuard
from hvd_sparse.tuning.stages import Stage, Tuning

# Fraction of the predicted time to a loss by which another plan must be shorter to replace one.
_MARGIN = 0.03
# Multiple of the intervals so far after which another plan is made.
_GROWTH = 4
_SEEN = 256  # intervals whose times are kept: enough for medians
# Fraction of a step from which on the slowest rank's wait for a meeting shows a lag.
_WAITS = 0.05
# Limits of what was `Observed`, since a single measurement may be an outlier.
_DRAG, _STRETCH = (0.0, 4.0), (0.5, 4.0)
# Part of the steps beyond the fewest that another plan may cost, each time the training is seen to
# learn badly.
_CAUTION = 1 / 3


class PlanState(TypedDict):
    """State of tuning local steps, of types that torch.load accepts.

    Attributes:
        plan: The plan, as text.
        intervals: Number of intervals so far.
        observed: The numbers of `Observed`.
        seen: Seconds of a step, of its waits and of an exchange in each interval since the plan was
            made.
        guard: State of the guard.
    """

    plan: str
    intervals: int
    observed: dict[str, float]
    seen: list[tuple[float, float, float]]
    guard: GuardState


class TunerOverTime:
    """Decides how often the ranks of an adaptive compression with `local_steps="auto"` meet.

    Args:
        layers: The layers: all parameters.
        compression: The user's compression.
        network: The measured network; the same on all ranks.
        machine: The measured machine; the same on all ranks.
        rank: This rank; rank 0 says what was chosen.
        agreed: Returns the text of one rank for all that follow one plan, in exchanges of their
            own; None if there are no others. Collective.

    Attributes:
        tuning: The network, the machine and the plan; the same on all ranks.
        times_next_step: False: the interval times its steps.
    """

    times_next_step = False

    def __init__(
        self,
        layers: Sequence[Layer],
        compression: SparseCompression,
        *,
        network: Network,
        machine: Machine,
        rank: int,
        agreed: Callable[[str], str] | None = None,
    ) -> None:
        self._agree = agreed
        self._layers = layers
        self._compression = compression
        self._is_rank0 = rank == 0
        self.tuning = Tuning(network=network, machine=machine)
        self.restart(network)

    def restart(self, network: Network) -> None:
        """Begins again, on a newly measured network; called between two steps, on all ranks."""
        self.tuning = replace(self.tuning, network=network)
        self._planner = PlannerOverTime(
            self._layers,
            self._compression,
            network=network,
            machine=self.tuning.machine,
        )
        self._intervals = 0
        self._seen: list[tuple[float, float, float]] = []
        self._observed = Observed(compute=1.0)
        self._guard = LearningGuard()
        self._use(self._agreed(self._planner.first()))

    def times_from(self, taken: int) -> bool:
        """Returns true if the steps after so many are timed, and those before are left out."""
        return self._intervals == 0 and taken == SKIPPED

    def end_step(self, reading: Reading | None, *, steps: int) -> Tuning | None:
        """Does nothing: plans change at meetings alone."""
        del reading, steps
        return None

    def end_interval(self, reports: Sequence[Report]) -> bool:
        """Counts an interval, on all ranks alike; returns true if the plan has changed.

        Args:
            reports: The reports of all ranks, in rank order.
        """
        self._intervals += 1
        step = max(report.step for report in reports)
        whole = max(report.step + report.waited for report in reports)
        # The others wait for the rank that comes last, whose exchange is the shortest.
        took = min(report.meeting for report in reports)
        self._seen = [*self._seen[1 - _SEEN :], (step, whole - step, took)]
        is_first = self._intervals == 1
        reason = None if is_first else self._guard.end_interval(reports)
        if reason is not None and self._step_back(reason):
            return True
        if not _is_power(self._intervals):
            return False
        self._observe(is_first=is_first)
        best = self._agreed(self._planner.best(self._observed))
        again = self._agreed(self._planner.predicted(self._plan.chosen, self._observed))
        if not is_first and best.slowdown > (1 - _MARGIN) * again.slowdown:
            self._use(again)
            return False
        self._change_to(best)
        return True

    def _observe(self, *, is_first: bool) -> None:
        """Notes what the intervals of this plan have taken."""
        step, waited, took = (statistics.median(column) for column in zip(*self._seen, strict=True))
        if is_first:
            self._observed = replace(self._observed, compute=step)
            return
        before, plan = self._observed, self._plan
        steps = plan.local_steps
        wait = waited * steps.first / steps.fragments  # of a meeting
        hidden = max(0.0, steps.delay * step - took)
        lag = hidden + wait if wait > _WAITS * step else min(before.lag, hidden)
        self._observed = replace(
            before,
            drag=_clipped((step - before.compute) / plan.work_seconds, _DRAG),
            stretch=_clipped(took * before.stretch / plan.exchange_seconds, _STRETCH),
            lag=min(lag, step),  # ranks that share cores wait while others compute
        )

    def _step_back(self, reason: str) -> bool:
        """Follows a more cautious plan; returns false if there is none."""
        fewest = steps_to_a_loss(min(EVERY), 1.0, 0)
        most = fewest + _CAUTION * (self._plan.steps - fewest)
        cautious = replace(self._observed, most_steps=most)
        best = self._agreed(self._planner.best(cautious))
        if best.steps >= self._plan.steps:
            return False
        self._observed = cautious
        if self._is_rank0:
            log.logger.warning("local steps: %s; a more cautious plan follows", reason)
        self._change_to(best)
        return True

    def _agreed(self, plan: PlanOverTime) -> PlanOverTime:
        return plan if self._agree is None else PlanOverTime.from_json(self._agree(plan.to_json()))

    def _change_to(self, plan: PlanOverTime) -> None:
        self._use(plan)
        self._seen = []
        self._guard.begin_plan()
        if self._is_rank0:
            log.logger.info("%s", _told(plan))

    def state(self) -> None:
        """Returns None: the plan belongs to the state of local steps, see `plan_state`."""

    def load(self, state: str | None, *, steps: int) -> Tuning:
        """Does nothing, likewise."""
        del state, steps
        return self.tuning

    def plan_state(self) -> PlanState:
        """Returns all state, for a checkpoint; equal on all ranks."""
        return {
            "plan": self._plan.to_json(),
            "intervals": self._intervals,
            "observed": asdict(self._observed),
            "seen": list(self._seen),
            "guard": self._guard.state(),
        }

    def load_plan(self, state: PlanState | None) -> None:
        """Restores what `plan_state` returned, on all ranks alike; None: begins again."""
        if state is None:
            self.restart(self.tuning.network)
        else:
            self._intervals, self._seen = state["intervals"], list(state["seen"])
            self._observed = Observed(**state["observed"])
            self._use(PlanOverTime.from_json(state["plan"]))
            self._guard.load(state["guard"])

    @property
    def _plan(self) -> PlanOverTime:
        assert self.tuning.over_time is not None
        return self.tuning.over_time

    def _use(self, plan: PlanOverTime) -> None:
        choices = plan.choices(self._layers)
        self.tuning = replace(
            self.tuning, stage=Stage.SETTLED, sparse=True, over_time=plan, buckets=choices
        )


def _is_power(count: int) -> bool:
    """Returns true for 1, 4, 16, ..."""
    power: int = _GROWTH ** round(math.log(count, _GROWTH))
    return count == power


def _clipped(number: float, limits: tuple[float, float]) -> float:
    least, most = limits
    return min(max(number, least), most)


def _told(plan: PlanOverTime) -> str:
    """Returns what was chosen and what it is expected to cost, for the log."""
    steps, chosen = plan.local_steps, plan.chosen
    given = replace(chosen.feedback, momentum=MOVE, rescale="auto")  # local steps leave both out
    fragments = f"in {steps.fragments} fragments, " if steps.fragments > 1 else ""
    late = f"{steps.delay} steps late" if steps.delay else "which steps wait for"
    return (
        f"ranks meet every {steps.every} steps, {fragments}{late}: a step computes for "
        f"{shown_seconds(plan.compute_seconds)} and is predicted to take "
        f"{shown_seconds(plan.step_seconds)}, and a loss {plan.steps:.3g} times the steps of dense "
        f"sums, {plan.slowdown:.3g} times the time of computing alone; the same without measuring: "
        f"{replace(chosen, feedback=given)!r}"
    )
