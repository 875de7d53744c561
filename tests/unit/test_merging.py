"""Merging: the shortest step of all partitions, compared with the published rule."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning.merging import Merged, Offer, merge_layers, omgs
from hvd_sparse.planning.pipeline import simulate
from tests.profiles import profile_of, random_profile


def affine(profile, *, select=(0.0, 0.0), exchange=(0.0, 0.0)):
    """Returns an offer whose times are a + b * entries."""
    sums = np.cumsum([0, *(layer.numel for layer in profile.layers)])
    numel = np.maximum(0, sums[None, :] - sums[:-1, None]).astype(float)
    return Offer(select[0] + select[1] * numel, exchange[0] + exchange[1] * numel)


def step_of(profile, merged, offers, select_on="caller"):
    return simulate(profile, merged.stages(offers), select_on=select_on).step


def every_merging(layers, offers):
    for cuts in itertools.product([False, True], repeat=layers - 1):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [layers]
        sizes = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
        for chosen in itertools.product(range(offers), repeat=len(sizes)):
            yield Merged(sizes, chosen)


def random_case(seed, *, offers):
    """Returns a random profile and offers whose startup, bytes and selection all matter."""
    random = np.random.default_rng(seed)
    layers = int(random.integers(1, 11 if offers == 1 else 8))
    profile = random_profile(seed, layers)
    entry = profile.backward / profile.numel  # seconds per entry, of the magnitude of backward

    def drawn(most):
        return random.uniform(0, most) if random.uniform() < 0.8 else 0.0

    made = [
        affine(
            profile,
            select=(drawn(0.1) * profile.backward / layers, drawn(0.3) * entry),
            exchange=(drawn(2) * profile.backward / layers, drawn(2) * entry),
        )
        for _ in range(offers)
    ]
    return profile, made


@pytest.mark.parametrize("select_on", ["caller", "engine"])
@pytest.mark.parametrize("offers", [1, 2])
@pytest.mark.parametrize("seed", range(12))
def test_no_partition_gives_a_shorter_step_than_the_optimal_one(seed, offers, select_on):
    profile, made = random_case(seed, offers=offers)
    found = merge_layers(profile, made, select_on=select_on)
    assert sum(found.sizes) == len(profile.layers)
    best = min(
        step_of(profile, other, made, select_on)
        for other in every_merging(len(profile.layers), offers)
    )
    assert step_of(profile, found, made, select_on) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("select_on", ["caller", "engine"])
def test_costs_without_any_structure_are_merged_optimally_too(select_on):
    random = np.random.default_rng(3)
    profile = random_profile(3, 8)
    shape = (8, 9)
    made = [Offer(random.uniform(0, 0.01, shape), random.uniform(0, 0.05, shape)) for _ in range(2)]
    found = merge_layers(profile, made, select_on=select_on)
    best = min(step_of(profile, other, made, select_on) for other in every_merging(8, 2))
    assert step_of(profile, found, made, select_on) == pytest.approx(best, rel=1e-12)


def test_buckets_that_cannot_be_are_never_chosen():
    profile = profile_of([10, 10, 10], [0.1, 0.1, 0.1])
    offer = affine(profile, exchange=(1.0, 0.0))
    offer.exchange[0, 3] = np.inf
    assert len(merge_layers(profile, [offer]).sizes) == 2


def test_fewer_ways_cost_a_hundredth_of_a_percent_at_most():
    for seed in range(3):
        profile = random_profile(seed, 60)
        entry = profile.backward / profile.numel
        made = [
            affine(profile, select=(2e-5, 0.1 * entry), exchange=(1e-3, 0.05 * entry)),
            affine(profile, exchange=(2e-3, 0.9 * entry)),
        ]
        exact = step_of(profile, merge_layers(profile, made, ways=10**6), made)
        assert exact * (1 - 1e-12) <= step_of(profile, merge_layers(profile, made), made)
        assert step_of(profile, merge_layers(profile, made), made) <= 1.0001 * exact


def test_the_published_rule_merges_where_startup_outweighs_delay():
    profile = profile_of([10, 10, 10, 10], [0.001] * 4, forward=0.0)
    assert omgs(profile, affine(profile, exchange=(1.0, 0.0))) == (4,)
    assert omgs(profile, affine(profile, exchange=(0.0, 1e-5))) == (1, 1, 1, 1)
    # An exchange that waits for the network anyway can wait for the next layer at no cost.
    busy = profile_of([10, 10, 10, 10], [0.001, 0.5, 0.1, 0.1], forward=0.0)
    assert omgs(busy, affine(busy, exchange=(0.4, 0.0))) == (1, 3)


def test_the_published_rule_is_never_better_and_sometimes_worse():
    ratios = []
    for seed in range(60):
        profile, made = random_case(seed, offers=1)
        optimal = step_of(profile, merge_layers(profile, made), made)
        ratios.append(step_of(profile, merge_layers(profile, made, rule="omgs"), made) / optimal)
    assert min(ratios) >= 1 - 1e-12
    # docs/algorithms.md states these counts.
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) == 34
    assert sum(ratio > 1.01 for ratio in ratios) == 4
    assert max(ratios) == pytest.approx(1.025, abs=0.0005)


def test_an_unknown_rule_is_refused():
    profile = profile_of([10], [0.1])
    with pytest.raises(InvalidArgumentError, match="rule of merging"):
        merge_layers(profile, [affine(profile)], rule="all")
