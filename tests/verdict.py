"""Adaptive trainings whose plan and verdict are fixed in advance."""

from __future__ import annotations

import math

import pytest

from hvd_sparse.tuning import tuner
from tests.plans import mixed_plan

DENSE_STEPS = tuner.SKIPPED_STEPS + tuner.TIMED_STEPS + 2  # plus the steps of a decision
CYCLE = 2 * DENSE_STEPS


@pytest.fixture
def verdict(monkeypatch):
    """Returns a function that sets the result of the comparison, whatever the times."""
    monkeypatch.setattr(tuner, "make_plan", mixed_plan)

    def choose(*, sparse):
        monkeypatch.setattr(tuner, "MARGIN", -math.inf if sparse else 1.0)

    return choose
