"""A profile agrees with a dense step that was timed."""

from __future__ import annotations

import pytest

from hvd_sparse.calibrate import LARGEST_FACTOR, calibrated
from hvd_sparse.pipeline import simulate_dense
from tests.profiles import deep_profile, gigabits, profile_of


@pytest.mark.parametrize("factor", [0.3, 0.9, 1.0, 1.4, 6.0])
def test_the_simulated_dense_step_becomes_the_measured_one(factor):
    profile = deep_profile(40)
    exposed = simulate_dense(profile).step - profile.compute
    measured = profile.compute + factor * exposed
    found = calibrated(profile, measured)
    assert simulate_dense(found).step == pytest.approx(measured, rel=1e-3)
    ratio = found.network.dense.beta / profile.network.dense.beta
    assert found.network.dense.alpha == pytest.approx(ratio * profile.network.dense.alpha)
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
