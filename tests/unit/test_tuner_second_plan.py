"""A second plan, made if the first one takes longer than predicted."""

from __future__ import annotations

import sys

import pytest

from hvd_sparse.planning.plan import Plan
from hvd_sparse.tuning import tuner as tuning
from hvd_sparse.tuning.stages import Stage
from tests.unit.test_tuner import DENSE, MACHINE, SPARSE, bucket, run, times, tuners

SECOND = Plan(
    buckets=(bucket(("head", "stem", "body"), (0.1, 0.1, 0.1), "gtopk", "packed"),),
    step_seconds=0.7,
    size=3,
    dense_seconds=1.0,
    compute_seconds=0.25,
)


def plans_taken(ranks, steps, seconds):
    """Runs steps of all ranks, each as long as its plan says; returns the plans adopted."""
    plans = []
    for number in range(1, steps + 1):
        now = ranks[0].tuning
        step = times(seconds[now.plan] if now.sparse else 4.0)
        changed = [one.end_step(step, steps=number) for one in ranks]
        plans += [found.plan for found in changed[:1] if found is not None]
        assert len({(one.tuning.stage, one.tuning.plan) for one in ranks}) == 1
    return plans


@pytest.fixture
def planned_again(monkeypatch):
    """Makes the planner return one plan, and another one once exchanges are found to be late.

    The second one may not send more than it has to.
    """

    def make_plan(profile, rules):
        late = profile.machine.exchange_overhead > MACHINE.exchange_overhead
        assert (rules.adaptive, rules.dense) == (not late, not late)
        return SECOND if late else SPARSE

    monkeypatch.setattr(tuning, "make_plan", make_plan)


@pytest.mark.parametrize(("second_seconds", "kept"), [(2.8, SECOND), (3.4, SPARSE)])
def test_a_plan_that_takes_longer_than_predicted_gets_a_second_one_beside_it(
    planned_again, second_seconds, kept, caplog
):
    ranks = tuners()
    seconds = {SPARSE: 3.2, SECOND: second_seconds}
    changes = plans_taken(ranks, 40, seconds)
    assert changes == [SPARSE, SECOND, *([SPARSE] if kept is SPARSE else [])]
    found = ranks[2].tuning
    assert found.stage is Stage.SETTLED
    assert found.sparse
    assert found.sparse_seconds == seconds[kept]
    late = found.profile.machine.exchange_overhead > MACHINE.exchange_overhead
    assert late == (kept is SECOND)


def test_a_second_plan_that_is_dense_is_not_tried(planned_again, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SECOND", DENSE)
    ranks = tuners()
    changes = run(ranks, 60, lambda sparse: 3.2 if sparse else 4.0)
    assert [sparse for *_, sparse in changes] == [True]
    assert ranks[0].tuning.plan == SPARSE


def test_after_a_restart_the_first_plan_is_forgotten(planned_again):
    ranks, seconds, plans = tuners(), {SPARSE: 3.2, SECOND: 3.4}, []
    while SECOND not in plans:
        plans += plans_taken(ranks, 1, seconds)
    for one in ranks:  # while the second plan is timed
        one.restart(one.tuning.network)
    assert plans_taken(ranks, 40, seconds) == [SPARSE, SECOND, SPARSE]


def test_a_second_plan_is_tried_once_and_may_lose_to_dense(planned_again, caplog):
    ranks = tuners()
    changes = run(ranks, 60, lambda sparse: 3.0 if sparse else 1.0)
    assert [sparse for *_, sparse in changes] == [True, True, False]
    assert ranks[1].tuning.stage is Stage.SETTLED
