"""Properties of the buckets, the ks and the plan of any model."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hvd_sparse.compression import LAGS, Warmup
from hvd_sparse.compression.buckets import Bucket, Layer, assign_buckets
from hvd_sparse.compression.parts import MAX_BUCKET_NUMEL
from hvd_sparse.errors import HvdSparseError
from hvd_sparse.planning import costs
from hvd_sparse.planning.plan import (
    Plan,
    entries_to_send,
    fixed_choices,
    ks_at,
    ks_by_step,
    largest_ks,
)
from hvd_sparse.planning.planner import Rules, make_plan
from hvd_sparse.planning.profile import Profile
from tests.profiles import gigabits, random_profile

NUMELS = st.integers(0, MAX_BUCKET_NUMEL)
DENSITIES = st.floats(1e-9, 1.0, exclude_min=False)
LAYERS = st.lists(NUMELS, max_size=20).map(
    lambda numels: [Layer(f"layer{i}", numel) for i, numel in enumerate(numels)]
)
WARMUPS = st.none() | st.builds(
    Warmup,
    steps=st.integers(1, 5),
    densities=st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=4).map(
        lambda densities: tuple(sorted(densities, reverse=True))
    ),
)
PROFILES = st.builds(
    lambda seed, layers, rate, size: random_profile(seed, layers, network=gigabits(rate, size)),
    st.integers(0, 10_000),
    st.integers(1, 12),
    st.sampled_from([0.1, 1.0, 10.0, 100.0]),
    st.sampled_from([1, 2, 3, 8, 64]),
)


@given(LAYERS, st.integers(1, MAX_BUCKET_NUMEL), st.booleans())
def test_buckets_take_every_layer_once_in_order_and_keep_their_limit(layers, limit, layer_wise):
    buckets = assign_buckets(layers, bucket_numel=limit, layer_wise=layer_wise)
    assert [layer for bucket in buckets for layer in bucket.layers] == layers
    most = limit if layer_wise else MAX_BUCKET_NUMEL
    for bucket in buckets:
        assert bucket.layers
        assert sum(bucket.segments) == bucket.numel
        assert bucket.numel <= most or len(bucket.layers) == 1
    for one, other in itertools.pairwise(buckets):  # buckets are as large as possible
        assert one.numel + other.layers[0].numel > most


@given(LAYERS, st.integers(1, MAX_BUCKET_NUMEL), st.randoms())
def test_buckets_do_not_depend_on_names(layers, limit, random):
    names = [f"other{i}" for i in range(len(layers))]
    random.shuffle(names)
    renamed = [replace(layer, name=name) for layer, name in zip(layers, names, strict=True)]
    ours, theirs = (
        assign_buckets(some, bucket_numel=limit, layer_wise=True) for some in (layers, renamed)
    )
    assert [bucket.segments for bucket in ours] == [bucket.segments for bucket in theirs]


@given(NUMELS, DENSITIES, DENSITIES)
def test_k_is_the_least_number_that_reaches_the_density(numel, density, other):
    k = entries_to_send(numel, density)
    if numel == 0:
        assert k == 0
        return
    assert 1 <= k <= numel
    exact = Fraction(repr(density)) * numel
    assert k == max(1, math.ceil(exact))
    assert (k <= entries_to_send(numel, other)) or density > other


@given(st.lists(NUMELS, min_size=1, max_size=6), st.data(), WARMUPS)
def test_no_step_sends_more_than_memory_is_made_for(numels, data, warmup):
    bucket = Bucket(tuple(Layer(str(i), n) for i, n in enumerate(numels)), layer_wise=True)
    densities = data.draw(st.lists(DENSITIES, min_size=len(numels), max_size=len(numels)))
    stages = ks_by_step(bucket, densities, warmup)
    assert stages[0][0] == 0
    most = largest_ks(bucket, densities, warmup)
    for step in range(25):
        ks = ks_at(bucket, densities, warmup, step)
        assert all(k <= limit for k, limit in zip(ks, most, strict=True))
        assert ks == [stage for begin, stage in stages if begin <= step][-1]


@given(LAYERS, st.floats(1e-6, 1.0))
def test_a_fixed_plan_names_every_layer_once_at_its_density(layers, density):
    choices = fixed_choices(layers, LAGS(density=density, adaptive=False))
    assert [name for choice in choices for name in choice.layers] == [one.name for one in layers]
    for choice in choices:
        assert choice.densities == (density,) * len(choice.layers)
        assert not choice.dense


@given(PROFILES, st.randoms())
def test_a_plan_depends_on_no_name_and_on_no_order_of_what_is_allowed(profile, random):
    rules = Rules(collectives=costs.SPARSE, wires=costs.WIRES)
    plan = make_plan(profile, rules)
    collectives, wires = list(costs.SPARSE), list(costs.WIRES)
    random.shuffle(collectives)
    random.shuffle(wires)
    shuffled = make_plan(profile, replace(rules, collectives=collectives, wires=wires))
    assert shuffled.step_seconds == plan.step_seconds
    assert [bucket.densities for bucket in shuffled.buckets] == [
        bucket.densities for bucket in plan.buckets
    ]
    layers = tuple(replace(layer, name=f"x{layer.name}") for layer in profile.layers)
    renamed = make_plan(replace(profile, layers=layers), rules)
    assert [
        replace(bucket, layers=tuple(f"x{name}" for name in bucket.layers))
        for bucket in plan.buckets
    ] == list(renamed.buckets)


@given(PROFILES, st.sampled_from(costs.SPARSE), st.booleans(), st.sampled_from(costs.WIRES))
def test_no_plan_is_slower_than_dense_or_than_one_that_may_choose_less(
    profile, collective, layer_wise, wire
):
    assume(profile.network.size > 1)
    free = Rules(collectives=costs.SPARSE, wires=costs.WIRES, margin=0.0)
    plan = make_plan(profile, free)
    assert plan.step_seconds <= plan.dense_seconds
    try:
        pinned = Rules(
            collectives=(collective,), wires=(wire,), layer_wise=layer_wise, adaptive=False
        )
        less = make_plan(profile, pinned)
    except HvdSparseError:
        return  # impossible between these ranks
    assert plan.step_seconds <= less.step_seconds * 1.0001


@given(PROFILES)
def test_a_profile_and_its_plan_read_back_from_what_they_save(profile):
    assert Profile.from_json(profile.to_json()) == profile
    plan = make_plan(profile)
    assert Plan.from_json(plan.to_json()) == plan


@given(PROFILES, st.data())
def test_a_saved_plan_that_was_damaged_is_refused_or_another_plan(profile, data):
    content = make_plan(profile).to_json()
    begin = data.draw(st.integers(0, len(content)))
    length = data.draw(st.integers(0, 20))
    damaged = content[:begin] + data.draw(st.text(max_size=5)) + content[begin + length :]
    try:
        plan = Plan.from_json(damaged)
    except HvdSparseError:
        return
    assert all(0 < density <= 1 for bucket in plan.buckets for density in bucket.densities)
    json.loads(plan.to_json())


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"kind": 3}', "NaN", "[" * 5000])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(HvdSparseError):
        Plan.from_json(text)
