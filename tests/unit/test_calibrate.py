"""A profile agrees with a dense step that was timed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_sparse.planning.calibrate import LARGEST_FACTOR, calibrated, delayed
from hvd_sparse.planning.network import Link
from hvd_sparse.planning.pipeline import simulate, simulate_dense
from hvd_sparse.planning.planner import Rules, make_plan
from tests.profiles import deep_profile, gigabits, profile_of


@pytest.mark.parametrize("factor", [0.3, 0.9, 1.0, 1.4, 6.0])
def test_the_simulated_dense_step_becomes_the_measured_one(factor):
    profile = deep_profile(40)
    narrow = Link(alpha=1e-3, beta=7e-9)
    profile = replace(profile, network=replace(profile.network, dense16=narrow))
    exposed = simulate_dense(profile).step - profile.compute
    measured = profile.compute + factor * exposed
    found = calibrated(profile, measured)
    assert simulate_dense(found).step == pytest.approx(measured, rel=1e-3)
    ratio = found.network.dense.beta / profile.network.dense.beta
    assert found.network.dense.alpha == pytest.approx(ratio * profile.network.dense.alpha)
    assert found.network.dense16.alpha == pytest.approx(ratio * narrow.alpha)
    assert found.network.dense16.beta == pytest.approx(ratio * narrow.beta)
    assert found.layers == profile.layers
    assert found.network.links == profile.network.links


@pytest.mark.parametrize(
    ("measured", "factor"), [(1e-6, 1 / LARGEST_FACTOR), (1e6, LARGEST_FACTOR)]
)
def test_it_goes_only_so_far(measured, factor):
    profile = deep_profile(10)
    found = calibrated(profile, measured)
    assert found.network.dense.beta == pytest.approx(factor * profile.network.dense.beta)


def test_a_step_that_hides_its_allreduces_keeps_them_hidden():
    profile = profile_of([10_000] * 3, [0.5] * 3, network=gigabits(10, 4))
    measured = simulate_dense(profile).step
    assert simulate_dense(calibrated(profile, measured)).step <= measured


def with_delay(plan, delay):
    return [
        stage if bucket.dense else replace(stage, exchange=stage.exchange + delay)
        for stage, bucket in zip(plan.stages(), plan.buckets, strict=True)
    ]


@pytest.mark.parametrize("delay", [1e-4, 5e-3, 0.1])
def test_what_every_exchange_takes_more_is_found_from_a_step(delay):
    profile = deep_profile(40)
    plan = make_plan(profile, Rules())
    measured = simulate(profile, with_delay(plan, delay)).step
    assert measured > plan.step_seconds
    found = delayed(profile, plan, measured)
    more = found.machine.exchange_overhead - profile.machine.exchange_overhead
    assert more == pytest.approx(delay, rel=1e-3)
    assert replace(found, machine=profile.machine) == profile


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_a_step_that_takes_no_longer_than_predicted_delays_little(ratio):
    profile = deep_profile(40)
    plan = make_plan(profile, Rules())
    found = delayed(profile, plan, ratio * plan.step_seconds)
    later = simulate(profile, with_delay(plan, found.machine.exchange_overhead)).step
    assert later <= 1.01 * plan.step_seconds


@pytest.mark.parametrize("reserve", [0.0, 0.5])
def test_a_second_plan_is_better_where_exchanges_are_late(reserve):
    profile = deep_profile(40)
    plan = make_plan(profile, Rules(reserve=reserve))
    measured = 1.5 * plan.step_seconds
    second = make_plan(delayed(profile, plan, measured), Rules(reserve=reserve))
    assert not second.decides_like(plan)
    assert second.step_seconds < measured
