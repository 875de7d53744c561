"""Tuning in a warm-up: a plan is for the current density, until that changes."""

from __future__ import annotations

import pytest

from hvd_sparse.compression import LAGS
from hvd_sparse.schedules import Warmup
from hvd_sparse.tuning import tuner as tuning
from hvd_sparse.tuning.tuner import Stage
from tests.unit.test_tuner import SPARSE, run, tuners

# Number of steps from the first timed dense one to a verdict; the first 7 are dense.
COMPARED = 18
DENSE = 7
SECONDS = {True: 0.5, False: 1.0}


@pytest.fixture
def floors(monkeypatch):
    """Returns a list of the minimum densities of all plans requested."""
    asked = []

    def choose(profile, rules):
        asked.append(rules.density)
        return SPARSE

    monkeypatch.setattr(tuning, "make_plan", choose)
    return asked


def begun(changes):
    """Returns the steps after which gradients were sent dense, to be timed."""
    return [step + 1 for step, stage, _ in changes if stage is Stage.DENSE]


def test_every_density_of_a_warm_up_is_planned_for_and_compared(floors):
    warmup = Warmup(steps=50, densities=(0.25, 0.1))
    ranks = tuners(compression=LAGS(density=0.01, warmup=warmup))
    changes = run(ranks, 1000, SECONDS.__getitem__)
    assert floors == [0.25, 0.1, 0.01]
    assert begun(changes) == [50, 100]
    assert all(one.tuning.sparse for one in ranks)


def test_a_density_that_is_the_same_is_no_reason(floors):
    warmup = Warmup(steps=50, densities=(0.1, 0.1, 0.001))
    ranks = tuners(compression=LAGS(density=0.01, warmup=warmup))
    assert begun(run(ranks, 1000, SECONDS.__getitem__)) == [100]
    assert floors == [0.1, 0.01]


@pytest.mark.parametrize("steps", [*range(1, DENSE), DENSE, DENSE + 3, COMPARED - 1])
def test_a_warm_up_that_ends_amid_a_comparison_begins_another_behind_it(floors, steps):
    ranks = tuners(compression=LAGS(density=0.01, warmup=Warmup(steps=steps, densities=(0.25,))))
    changes = run(ranks, 1000, SECONDS.__getitem__)
    if steps <= DENSE:  # the warm-up ends before the plan
        assert (floors, begun(changes)) == ([0.01], [])
    else:
        assert (floors, begun(changes)) == ([0.25, 0.01], [COMPARED + 1])


def test_a_second_plan_is_for_the_warm_up_as_well(floors):
    compression = LAGS(density=0.01, warmup=Warmup(steps=500, densities=(0.25,)))
    run(tuners(compression=compression), 40, {True: 0.9, False: 1.0}.__getitem__)
    assert floors == [0.25, 0.25]  # SPARSE promised less than 0.9


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
    assert begun(both[0]) == begun(both[1]) == again
