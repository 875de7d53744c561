"""Dense steps in 16 bits, worked by hand and beside plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_sparse.planning import costs, in_16_bits
from hvd_sparse.planning.pipeline import FUSION_BYTES, simulate_dense
from hvd_sparse.planning.profile import Link, Network, Profile
from tests.profiles import IDLE, deep_profile, gigabits, profile_of

LINK = Link(alpha=0.0, beta=0.0)
NETWORK = Network(
    size=2, links=((1, LINK),), dense=Link(alpha=1, beta=0.1), dense16=Link(alpha=2, beta=0.3)
)


def test_the_hosts_step_in_16_bits_follows_the_line_that_was_timed():
    model = profile_of([10, 20], [1.0, 2.0], forward=0.0, network=NETWORK)
    # Layers of 20 and 40 bytes: the first one is sent from 1 to 9, the second one then.
    assert in_16_bits.host_step(model) == 9 + 2 + 0.3 * 40


def test_twice_the_entries_fit_the_fusion_buffer():
    numel = FUSION_BYTES // 4
    model = profile_of([numel, numel], [0.0, 0.0], forward=0.0, network=NETWORK)
    assert len(simulate_dense(model).buckets) == 2
    assert in_16_bits.host_step(model) == pytest.approx(2 + 0.3 * 4 * numel)


def test_a_profile_without_that_line_has_no_such_step():
    network = replace(NETWORK, dense16=None)
    model = profile_of([10], [1.0], network=network)
    assert in_16_bits.host_step(model) is None
    old = model.to_json().replace('"dense16": null, ', "")
    assert "dense16" not in old
    assert Profile.from_json(old) == model


def test_our_own_step_in_16_bits_sends_half_of_the_bytes():
    profile = replace(deep_profile(), machine=IDLE)
    exposed = in_16_bits.own_step(profile) - profile.compute
    in_float32 = costs.cost(
        "shard_sum",
        k=profile.numel,
        numel=profile.numel,
        network=profile.network,
        machine=IDLE,
    )
    assert exposed < in_float32.seconds / 2
    assert exposed > in_float32.seconds / 2 - profile.backward


def test_a_device_has_our_own_step_if_our_sum_was_timed_there():
    machine = replace(IDLE, copy_seconds_per_entry=1e-9)
    model = profile_of([10], [1.0], network=gigabits(1, 4), machine=machine)
    assert in_16_bits.own_step(model) is None
    machine = replace(machine, write_seconds_per_entry=1e-9)
    assert in_16_bits.own_step(replace(model, machine=machine)) > model.compute
