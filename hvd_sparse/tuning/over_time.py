"""Tunes local steps: plans over time, from measured times, and again as these change.

The ranks meet after a few steps first. Then they follow a plan, and make another one after 8, 64,
512, ... intervals, from the median times of those that followed this one. All ranks have the same
numbers of all ranks, and so make the same plan.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from hvd_sparse import log
from hvd_sparse.compression.base import SparseCompression
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.compression.parts import MOVE
from hvd_sparse.exchange.interval import Report
from hvd_sparse.places.step_clock import Reading
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.over_time import SKIPPED, PlannerOverTime, PlanOverTime, Times
from hvd_sparse.planning.profile import Machine
from hvd_sparse.planning.quantities import shown_seconds
from hvd_sparse.tuning.stages import Stage, Tuning

# Fraction of the predicted time to a loss by which another plan must be shorter to replace one.
_MARGIN = 0.03
# Multiple of the intervals so far after which another plan is made.
_GROWTH = 8
# Limits of measured `Times`, since a single measurement may be an outlier.
_DRAG, _STRETCH = (0.0, 4.0), (0.5, 4.0)


# Intervals, the numbers of `Times`, seconds of a step and of an exchange in each interval since the
# plan was made, and the plan as text.
PlanState: TypeAlias = tuple[int, tuple[float, float, float], list[tuple[float, float]], str]


class TunerOverTime:
    """Decides how often the ranks of an adaptive compression with `local_steps="auto"` meet.

    Args:
        layers: The layers that can be sparse.
        compression: The user's compression.
        others: Entries of all other parameters.
        network: The measured network; the same on all ranks.
        machine: The measured machine; the same on all ranks.
        rank: This rank; rank 0 says what was chosen.

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
        others: int,
        network: Network,
        machine: Machine,
        rank: int,
    ) -> None:
        self._layers = layers
        self._compression = compression
        self._others = others
        self._is_rank0 = rank == 0
        self.tuning = Tuning(network=network, machine=machine)
        self.restart(network)

    def restart(self, network: Network) -> None:
        """Begins again, on a newly measured network; called between two steps, on all ranks."""
        self.tuning = replace(self.tuning, network=network)
        self._planner = PlannerOverTime(
            self._layers,
            self._compression,
            others=self._others,
            network=network,
            machine=self.tuning.machine,
        )
        self._intervals = 0
        self._seen: list[tuple[float, float]] = []
        self._times = Times(compute=1.0)
        self._use(self._planner.first())

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
        # The others wait for the rank that comes last, whose exchange is the shortest.
        took = min(report.meeting for report in reports)
        self._seen.append((max(report.step for report in reports), took))
        present, is_first = self._plan, self._intervals == 1
        if not _is_power(self._intervals):
            return False
        step, took = (statistics.median(column) for column in zip(*self._seen, strict=True))
        if is_first:
            self._times = Times(compute=step)
        else:
            self._times = Times(
                compute=self._times.compute,
                drag=_clipped((step - self._times.compute) / present.work_seconds, _DRAG),
                stretch=_clipped(took * self._times.stretch / present.exchange_seconds, _STRETCH),
            )
        best = self._planner.best(self._times)
        again = self._planner.predicted(present.chosen, self._times)
        if not is_first and best.slowdown > (1 - _MARGIN) * again.slowdown:
            self._use(again)
            return False
        self._use(best)
        self._seen = []
        if self._is_rank0:
            log.logger.info("%s", _told(best))
        return True

    def state(self) -> None:
        """Returns None: the plan belongs to the state of local steps, see `plan_state`."""

    def load(self, state: str | None, *, steps: int) -> Tuning:
        """Does nothing, likewise."""
        del state, steps
        return self.tuning

    def plan_state(self) -> PlanState:
        """Returns intervals, times and plan, for a checkpoint; equal on all ranks."""
        times = (self._times.compute, self._times.drag, self._times.stretch)
        return self._intervals, times, list(self._seen), self._plan.to_json()

    def load_plan(self, state: PlanState | None) -> None:
        """Restores what `plan_state` returned, on all ranks alike; None: begins again."""
        if state is None:
            self.restart(self.tuning.network)
        else:
            self._intervals, (compute, drag, stretch), seen, plan = state
            self._seen = list(seen)
            self._times = Times(compute=compute, drag=drag, stretch=stretch)
            self._use(PlanOverTime.from_json(plan))

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
    """Returns true for 1, 8, 64, ..."""
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
