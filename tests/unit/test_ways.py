"""Ways to train a model that has not run: their predictions side by side."""

from __future__ import annotations

import pytest

from hvd_sparse.compression import LAGS
from hvd_sparse.planning import planner
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.profile import ONE_CORE
from hvd_sparse.planning.ways import Tensor, compared, profile_of

TENSORS = [
    Tensor("embedding", (5000, 128)),
    Tensor("bias", (128,)),
    *(Tensor(f"layer {i}", (512, 512)) for i in range(8)),
]
NUMEL = 5000 * 128 + 128 + 8 * 512 * 512
COMPUTE = 0.1


def ways_at(mbit, size=8):
    profile = profile_of(TENSORS, COMPUTE, Network.assumed(size, 1e6 / 8 * mbit, 5e-5), ONE_CORE)
    return {one.name: one for one in compared(profile, TENSORS)}


def test_a_profile_of_an_unseen_model_spreads_its_computing_over_its_entries():
    profile = profile_of(TENSORS, COMPUTE, Network.assumed(4, 1e8, 1e-5), ONE_CORE)
    assert [one.name for one in profile.layers] == [one.name for one in reversed(TENSORS)]
    assert profile.numel == NUMEL
    assert profile.compute == pytest.approx(COMPUTE)
    assert profile.backward == pytest.approx(2 / 3 * COMPUTE)


@pytest.mark.parametrize("size", [2, 8, 64])
def test_every_way_sends_what_it_must(size):
    ways = ways_at(100, size)
    ring = 2 * (size - 1) / size
    assert ways["computing alone"].bytes == 0
    assert ways["DDP"].bytes == pytest.approx(4 * ring * NUMEL)
    assert ways["DDP, bf16_compress_hook"].bytes == pytest.approx(2 * ring * NUMEL)
    assert ways["the same, 4 batches accumulated"].bytes == pytest.approx(ring * NUMEL / 2)
    factors = 4 * (5000 + 128) + 128 + 8 * 4 * 1024
    assert ways["DDP, PowerSGD of rank 4"].bytes == pytest.approx(4 * ring * factors)
    assert 0 < ways["LAGS"].bytes < 0.2 * ways["DDP"].bytes


def test_on_a_slow_network_ours_are_ahead_and_none_is_faster_than_computing():
    ways = ways_at(10)
    assert all(one.step_seconds >= COMPUTE for one in ways.values())
    dense = ways["DDP"].slowdown
    assert dense > 10
    assert ways['LAGS(local_steps="auto")'].slowdown < ways["LAGS"].slowdown < dense / 5
    assert ways["the same, 4 batches accumulated"].slowdown is None


def test_lags_is_what_its_plan_says():
    ways = ways_at(1000)
    network = Network.assumed(8, 1e9 / 8, 5e-5)
    profile = profile_of(TENSORS, COMPUTE, network, ONE_CORE)
    plan = planner.make_plan(profile, planner.rules_of(LAGS()))
    assert ways["LAGS"].step_seconds == pytest.approx(plan.step_seconds, rel=0.01)


def test_a_model_without_large_tensors_has_no_way_of_ours():
    tensors = [Tensor("a", (10, 10)), Tensor("b", (2000,))]
    profile = profile_of(tensors, COMPUTE, Network.assumed(4, 1e8, 1e-5), ONE_CORE)
    assert not [one for one in compared(profile, tensors) if "LAGS" in one.name]
