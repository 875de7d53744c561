"""Predictions for pinned compressions, from the profile that an adaptive one measured."""

from __future__ import annotations

import json
import math

import pytest
from predictions import median_error, predicted_step, predictions, relative_errors

from hvd_sparse.compression import LAGS, Dense, Layers, TopK
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.planner import Rules, dense_plan, make_plan
from hvd_sparse.planning.profile import LayerProfile, Machine, Profile

RANKS, BANDWIDTH, LATENCY = 8, 1e7, 1e-3
PER_ENTRY = 1e-8  # seconds of selection
NUMEL = 1_000_000


def profile_of(layers):
    return Profile(
        layers=tuple(
            LayerProfile(name=f"layer{i}", numel=NUMEL, backward=0.1) for i in range(layers)
        ),
        forward=0.05,
        network=Network.assumed(RANKS, BANDWIDTH, LATENCY),
        machine=Machine(
            select_seconds_per_entry=PER_ENTRY, select_overhead=0.0, merge_seconds_per_entry=0.0,
            code_seconds_per_entry=0.0,
        ),
    )  # fmt: skip


def gtopk_seconds(k):
    return math.log2(RANKS) * (LATENCY + (32 + 8 * k) / BANDWIDTH)


def test_a_single_bucket_follows_backward_and_selection():
    step = predicted_step(profile_of(1), LAGS(density=0.01, adaptive=False, collective="gtopk"))
    assert step == pytest.approx(0.05 + 0.1 + NUMEL * PER_ENTRY + gtopk_seconds(10_000))


def test_buckets_travel_while_backward_goes_on_and_a_whole_model_afterwards():
    profile = profile_of(3)
    pinned = LAGS(
        density=0.01, adaptive=False, collective="gtopk", layers=Layers(bucket_numel=NUMEL)
    )
    compute = 0.05 + 3 * (0.1 + NUMEL * PER_ENTRY)
    assert predicted_step(profile, pinned) == pytest.approx(compute + gtopk_seconds(10_000))
    whole = TopK(density=0.01, layers=Layers(layer_wise=False), collective="gtopk")
    assert predicted_step(profile, whole) == pytest.approx(compute + gtopk_seconds(30_000))


def test_a_dense_sum_of_narrow_values_is_predicted_from_its_own_bytes():
    profile = profile_of(1)
    steps = [predicted_step(profile, Dense(values=values)) for values in ("float32", "bfloat16")]
    saved = 2 * (RANKS - 1) / RANKS * NUMEL * 2 / BANDWIDTH
    assert steps[0] - steps[1] == pytest.approx(saved, rel=0.1)  # and fewer chunks


def test_modes_are_predicted_from_what_the_tuner_found():
    profile = profile_of(3)
    plan = make_plan(profile, Rules(density=0.01))
    settling = {
        "sparse": True,
        "profile": json.loads(profile.to_json()),
        "predicted": {"sparse": plan.step_seconds, "dense": plan.dense_seconds},
    }
    modes = ["compute", "dense", "LAGS(density=0.01)", "TopK(density=0.01)"]
    told = predictions(settling, modes)
    assert told["compute"] == pytest.approx(profile.compute)
    assert told["dense"] == dense_plan(profile).step_seconds
    assert told["LAGS(density=0.01)"] == plan.step_seconds < told["TopK(density=0.01)"]
    stays_dense = predictions({**settling, "sparse": False}, modes)
    assert stays_dense["LAGS(density=0.01)"] == plan.dense_seconds


def test_errors_are_those_of_the_prediction_relative_to_what_was_measured():
    assert relative_errors({"a": 1.2}, {"a": 1.0, "b": 1.0}) == pytest.approx({"a": 0.2})
    assert median_error([-0.3, 0.1, 0.2]) == 0.2
    assert math.isnan(median_error([]))
