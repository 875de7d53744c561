"""Tuning in a warm-up: a plan is for the current density, until that changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_sparse.compression import LAGS, Warmup
from hvd_sparse.tuning import tuner as tuning
from hvd_sparse.tuning.stages import Stage
from tests.unit.test_tuner import SPARSE, run, tuners

# Number of steps from the first timed dense one to a verdict; the first 7 are dense.
COMPARED = 18
DENSE = 7
DECIDED = 2  # steps that a decision takes
SECONDS = {True: 0.4, False: 1.0}  # of a sparse step, and of a dense one
SPARSE_IS_SLOW = {True: 1.0, False: 0.5}
SPARSE_IS_NEAR = {True: 0.6, False: 1.0}


@pytest.fixture
def floors(monkeypatch):
    """Returns a list of the minimum densities of all plans requested.

    After each plan of a warm-up follows that of the final density, whose time limits it.
    """
    asked = []

    def choose(profile, rules):
        asked.append(rules.density)
        return SPARSE

    monkeypatch.setattr(tuning, "make_plan", choose)
    return asked


def begun(changes):
    """Returns the steps after which gradients were sent dense, to be timed."""
    return [step + 1 for step, stage, _ in changes if stage is Stage.DENSE]


def tried(changes):
    """Returns the steps after which gradients followed a new plan, to be timed."""
    return [step + 1 for step, stage, _ in changes if stage is Stage.SPARSE]


def test_every_density_of_a_warm_up_is_planned_for_without_dense_steps(floors):
    warmup = Warmup(steps=50, densities=(0.25, 0.1))
    ranks = tuners(compression=LAGS(density=0.01, warmup=warmup))
    changes = run(ranks, 1000, SECONDS.__getitem__)
    assert floors == [0.25, 0.01, 0.1, 0.01, 0.01]
    assert tried(changes) == [DENSE + DECIDED, 50 + DECIDED, 100 + DECIDED]
    assert begun(changes) == []
    assert all(sparse for _, _, sparse in changes)
    assert all(one.tuning.sparse for one in ranks)
    assert all(one.tuning.dense_seconds == SECONDS[False] for one in ranks)


def test_dense_steps_are_timed_again_where_sparse_ones_are_not_far_ahead(floors):
    warmup = Warmup(steps=50, densities=(0.25, 0.1))
    changes = run(tuners(compression=LAGS(warmup=warmup)), 1000, SPARSE_IS_NEAR.__getitem__)
    assert begun(changes) == [50, 100]


def test_steps_that_are_dense_are_timed_again_for_every_density_of_a_warm_up(floors):
    warmup = Warmup(steps=50, densities=(0.25, 0.1))
    changes = run(tuners(compression=LAGS(warmup=warmup)), 1000, SPARSE_IS_SLOW.__getitem__)
    assert tried(changes) == [step + DENSE + DECIDED for step in (0, 50, 100)]


def test_a_density_that_is_the_same_is_no_reason(floors):
    warmup = Warmup(steps=50, densities=(0.1, 0.1, 0.001))
    ranks = tuners(compression=LAGS(density=0.01, warmup=warmup))
    assert tried(run(ranks, 1000, SECONDS.__getitem__))[1:] == [100 + DECIDED]
    assert floors == [0.1, 0.01, 0.01]


@pytest.mark.parametrize("steps", [*range(1, DENSE), DENSE, DENSE + 3, COMPARED - 1])
def test_a_warm_up_that_ends_amid_a_comparison_begins_another_behind_it(floors, steps):
    ranks = tuners(compression=LAGS(density=0.01, warmup=Warmup(steps=steps, densities=(0.25,))))
    changes = run(ranks, 1000, SECONDS.__getitem__)
    if steps <= DENSE:  # the warm-up ends before the plan
        assert (floors, tried(changes)[1:]) == ([0.01], [])
    else:
        assert floors == [0.25, 0.01, 0.01]
        assert tried(changes)[1:] == [COMPARED + 1 + DECIDED]


def test_a_warm_up_sends_less_where_its_steps_would_take_much_longer(monkeypatch):
    seconds = {0.25: 2.0, 0.125: 1.0, 0.0625: 0.6, 0.01: 0.5}

    def choose(profile, rules):
        density = rules.density
        asked.append(density)
        return replace(SPARSE, step_seconds=seconds[density])

    asked = []
    monkeypatch.setattr(tuning, "make_plan", choose)
    ranks = tuners(compression=LAGS(density=0.01, warmup=Warmup(steps=500, densities=(0.25,))))
    run(ranks, 12, SECONDS.__getitem__)
    assert asked == [0.25, 0.01, 0.125, 0.0625]
    assert all(one.tuning.plan.step_seconds == 0.6 for one in ranks)


def test_a_second_plan_is_for_the_warm_up_as_well(floors):
    compression = LAGS(density=0.01, warmup=Warmup(steps=500, densities=(0.25,)))
    run(tuners(compression=compression), 40, {True: 0.9, False: 1.0}.__getitem__)
    assert floors == [0.25, 0.01, 0.25, 0.01]  # SPARSE promised less than 0.9


# In the second case, the warm-up goes on while steps of its first stage are still compared.
@pytest.mark.parametrize(
    ("warmup", "cut", "again"),
    [
        (Warmup(steps=60, densities=(0.25, 0.1)), 80, [120]),
        (Warmup(steps=10, densities=(0.25,)), COMPARED, [COMPARED + 1]),
    ],
)
def test_a_resumed_run_looks_again_when_the_first_would_have(floors, warmup, cut, again):
    compression = LAGS(density=0.01, warmup=warmup)
    first, second = tuners(compression=compression), tuners(compression=compression)
    run(first, cut, SECONDS.__getitem__)
    for one in second:
        one.load(first[0].state(), steps=cut)
    both = [run(ranks, 100, SECONDS.__getitem__, before=cut) for ranks in (first, second)]
    assert tried(both[0]) == tried(both[1]) == [step + DECIDED for step in again]
