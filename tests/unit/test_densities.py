"""Densities: as high as can be hidden, fair, and never at the cost of the step."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hvd_sparse.planning.densities import (
    Ladder,
    notches_between,
    paper_densities,
    simulated_densities,
)
from hvd_sparse.planning.pipeline import simulate
from tests.profiles import profile_of, random_profile


def ladder_of(profile, densities, *, select=0.0, alpha=0.0, scale=1.0):
    """Returns a ladder with one bucket per layer.

    An exchange takes alpha + scale * density * entries of the backward time.
    """
    numel = np.array([layer.numel for layer in profile.layers], float)
    entry = profile.backward / profile.numel
    exchange = alpha + scale * entry * np.outer(numel, densities)
    return Ladder(tuple(densities), np.full(numel.size, select), exchange)


def step_of(profile, ladder, notches, select_on="caller"):
    sizes = [1] * len(profile.layers)
    return simulate(profile, ladder.stages(sizes, notches), select_on=select_on).step


def case(seed, layers):
    random = np.random.default_rng(seed)
    profile = random_profile(seed, layers)
    ladder = ladder_of(
        profile,
        [0.001, 0.1, 0.3, 0.6, 1.0],
        select=random.choice([0.0, 1e-3]),
        alpha=random.choice([0.0, 1e-3]),
        scale=random.uniform(0.3, 3),
    )
    return profile, ladder


@pytest.mark.parametrize("select_on", ["caller", "engine"])
@pytest.mark.parametrize("seed", range(20))
def test_densities_are_max_min_fair_among_all_that_keep_the_step(seed, select_on):
    profile, ladder = case(seed, 5)
    found = simulated_densities(profile, [1] * 5, ladder, select_on=select_on)
    limit = step_of(profile, ladder, [0] * 5, select_on) * (1 + 1e-9)
    assert step_of(profile, ladder, found, select_on) <= limit
    for i in range(5):  # no bucket can rise alone
        if found[i] < 4:
            raised = [notch + (j == i) for j, notch in enumerate(found)]
            assert step_of(profile, ladder, raised, select_on) > limit
    fair = max(
        sorted(other)
        for other in itertools.product(range(5), repeat=5)
        if step_of(profile, ladder, other, select_on) <= limit
    )
    # The poorest gets all that it can; on this coarse ladder, others lose at most one notch.
    assert min(found) == fair[0]
    assert all(mine >= best - 1 for mine, best in zip(sorted(found), fair, strict=True))


def test_on_a_fine_ladder_the_fair_densities_are_found():
    # The last layer's exchange can never be hidden. The one before it has 1 second, the first 3.
    profile = profile_of([100, 100, 100], [1.0, 2.0, 1.0], forward=0.0)
    densities = notches_between(0.001, 1.0)
    ladder = Ladder(densities, np.zeros(3), np.outer([1.0, 5.0, 1.0], densities))
    found = [densities[notch] for notch in simulated_densities(profile, [1, 1, 1], ladder)]
    assert found == pytest.approx([1.0, 0.2, 0.001], rel=0.02)


def test_a_bucket_may_use_what_later_ones_leave():
    # The paper's rule looks only at the next layer, which is short.
    profile = profile_of([100, 1, 100], [1.0, 0.01, 5.0], forward=0.0)
    densities = (0.001, 0.01, 0.1, 0.5)
    ladder = Ladder(densities, np.zeros(3), np.outer([8.0, 0.01, 8.0], densities))
    assert paper_densities(profile, [1, 1, 1], ladder) == [0, 3, 0]
    assert simulated_densities(profile, [1, 1, 1], ladder) == [3, 3, 0]


def test_the_rule_of_the_paper_fits_each_bucket_into_the_next_backward_pass():
    for seed in range(10):
        profile, ladder = case(seed, 6)
        sizes = [2, 1, 3]
        merged = Ladder(ladder.densities, ladder.select[:3], ladder.exchange[:3])
        found = paper_densities(profile, sizes, merged)
        backward = [layer.backward for layer in profile.layers]
        rooms = [backward[2], sum(backward[3:])]
        for i, room in enumerate(rooms):
            times = merged.select[i] + merged.exchange[i]
            allowed = [notch for notch in range(5) if times[notch] <= room]
            assert found[i] == (allowed[-1] if allowed else 0)
        assert found[2] == 0


def test_buckets_start_where_they_are_told_and_never_fall():
    profile = profile_of([100, 100, 100], [1.0, 2.0, 1.0], forward=0.0)
    densities = (0.001, 0.1, 0.2, 1.0)
    ladder = Ladder(densities, np.zeros(3), np.outer([9.0, 1.0, 1.0], densities))
    found = simulated_densities(profile, [1, 1, 1], ladder, start=[3, 0, 0])
    assert found[0] == 3
    assert step_of(profile, ladder, found) <= step_of(profile, ladder, [3, 0, 0]) * (1 + 1e-9)


@pytest.mark.parametrize("floor", [1e-6, 0.001, 0.0123, 0.3])
def test_notches_ascend_from_the_floor_in_small_steps(floor):
    densities = notches_between(floor)
    assert densities[0] == floor
    assert densities[-1] == 0.5
    assert all(1 < b / a < 1.022 for a, b in itertools.pairwise(densities))


def test_a_floor_past_the_ceiling_is_the_only_notch():
    assert notches_between(0.7) == (0.7,)
