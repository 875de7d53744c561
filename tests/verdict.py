"""Adaptive trainings whose plan and verdict are fixed in advance."""

from __future__ import annotations

import math

import pytest

from hvd_sparse.compression import LocalSteps
from hvd_sparse.planning.over_time import PlannerOverTime
from hvd_sparse.tuning import over_time, stages, tuner
from tests.plans import mixed_plan

DENSE_STEPS = tuner.SKIPPED_STEPS + tuner.TIMED_STEPS + 2  # plus the steps of a decision
CYCLE = 2 * DENSE_STEPS


@pytest.fixture
def verdict(monkeypatch):
    """Returns a function that sets the result of the comparison, whatever the times."""
    monkeypatch.setattr(tuner, "make_plan", mixed_plan)

    def choose(*, sparse):
        monkeypatch.setattr(tuner, "MARGIN", -math.inf if sparse else 1.0)
        monkeypatch.setattr(stages, "FAR_AHEAD", 0.0)  # nothing ever is

    return choose


@pytest.fixture
def plans_over_time(monkeypatch):
    """Returns a function that sets the local steps of plans over time, whatever the times.

    The first plan is as it is; those that follow it have these options of LocalSteps, in turn.
    """

    def choose(*options):
        following = iter([LocalSteps(**one) for one in options])

        def best(planner, times):
            assert times.compute > 0
            return planner.predicted(planner._with(0.1, next(following)), times)

        monkeypatch.setattr(PlannerOverTime, "best", best)
        monkeypatch.setattr(over_time, "_MARGIN", -math.inf)
        monkeypatch.setattr(over_time, "_GROWTH", 2)

    return choose
