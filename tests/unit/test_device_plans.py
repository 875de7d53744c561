"""Plans for gradients on devices: the links used, and how they are sent, saved and explained."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from hvd_sparse import cli
from hvd_sparse.compression import LAGS
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.places.place import OnDevice
from hvd_sparse.planning import costs
from hvd_sparse.planning.explanation import explain
from hvd_sparse.planning.network import Link
from hvd_sparse.planning.plan import Plan
from hvd_sparse.planning.planner import Rules, make_plan, rules_of
from hvd_sparse.planning.profile import Profile
from hvd_sparse.planning.routes import CALLS, ROUNDS
from tests.profiles import MACHINE, between_devices, deep_profile, gigabits

RULES = Rules(collectives=costs.SPARSE, wires=costs.WIRES)
ON_DEVICE = replace(MACHINE, copy_seconds_per_entry=1e-9)
MERGE = Link(alpha=3e-5, beta=1e-11)


def profile_on_devices(rate, *, latency=2e-5, size=16):
    """Returns a profile of CPUs at 1 Gb/s and devices at `rate`; of CPUs alone if it is None."""
    network = gigabits(1, size)
    if rate is not None:
        network = between_devices(network, rate, latency=latency, merge=MERGE, handing=MERGE)
    return replace(deep_profile(40), network=network, machine=ON_DEVICE)


def sparse_of(plan):
    return [bucket for bucket in plan.buckets if not bucket.dense]


def test_fast_links_between_devices_are_used_for_more_entries_at_no_cost():
    connected, cpus = (make_plan(profile_on_devices(rate), RULES) for rate in (100, None))
    large = [one for one in sparse_of(connected) if one.k > 100]
    assert {one.route for one in large} == {ROUNDS}
    assert {one.route for one in cpus.buckets} == {CALLS}
    assert connected.step_seconds <= cpus.step_seconds
    sent = [sum(one.k for one in sparse_of(plan)) for plan in (connected, cpus)]
    assert sent[0] > 1.25 * sent[1]


@pytest.mark.parametrize(("rate", "latency"), [(0.02, 2e-5), (100, 0.1)])
def test_slow_links_between_devices_are_left_alone(rate, latency):
    plan, cpus = (make_plan(profile_on_devices(r, latency=latency), RULES) for r in (rate, None))
    assert sparse_of(plan)
    assert plan == cpus


def test_a_bucket_is_predicted_what_the_faster_route_takes():
    profile = profile_on_devices(10)
    for collective in ("allgather", "gtopk", "shard_topk"):
        rules = Rules(collectives=(collective,), dense=False, adaptive=False)
        for bucket in make_plan(profile, rules).buckets:
            prices = {
                route: costs.cost(
                    collective, k=bucket.k, numel=bucket.numel, network=profile.network,
                    machine=ON_DEVICE, by_devices=route == ROUNDS,
                ).seconds
                for route in (CALLS, ROUNDS)
            }  # fmt: skip
            assert bucket.exchange_seconds == pytest.approx(min(prices.values()))
            assert bucket.route == min(prices, key=prices.__getitem__)


def test_a_plan_takes_our_dense_sum_where_it_was_timed():
    # Backward hides many entries, and every layer may be dense.
    profile = replace(deep_profile(40, rate=10, size=4), machine=ON_DEVICE)
    rules = rules_of(LAGS(), OnDevice)
    assert not {one.collective for one in make_plan(profile, rules).buckets} & {"shard_sum"}
    timed = replace(
        ON_DEVICE,
        take_seconds_per_entry=1e-10,
        pass_seconds_per_entry=9e-10,
        write_seconds_per_entry=5e-10,
    )
    plan = make_plan(replace(profile, machine=timed), rules)
    assert {("shard_sum", "int8", CALLS)} <= {
        (one.collective, one.values, one.route) for one in plan.buckets
    }


def test_values_that_travel_narrow_go_by_the_cpus():
    rules = Rules(collectives=("gtopk",), values=("bfloat16",), dense=False)
    assert make_plan(profile_on_devices(100), rules) == make_plan(profile_on_devices(None), rules)


# ---- Sent, saved, explained ----------------------------------------------------------------------


def test_routes_are_told_to_all_ranks_and_saved():
    profile = profile_on_devices(100)
    plan = make_plan(profile, replace(RULES, collectives=("gtopk",)))
    assert ROUNDS in {bucket.route for bucket in plan.buckets}
    assert Plan.from_json(plan.to_json()) == plan


def test_another_route_is_another_decision():
    plan = make_plan(profile_on_devices(100), RULES)
    by_cpus = tuple(replace(bucket, route=CALLS) for bucket in plan.buckets)
    assert not plan.decides_like(replace(plan, buckets=by_cpus))


def test_a_plan_of_before_went_by_the_cpus():
    plan = make_plan(profile_on_devices(None), RULES)
    content = json.loads(plan.to_json())
    for bucket in content["buckets"]:
        del bucket["route"]
    assert Plan.from_json(json.dumps(content)) == plan
    content["buckets"][0]["route"] = "by post"
    with pytest.raises(InvalidArgumentError, match=r"route of a bucket .* got 'by post'"):
        Plan.from_json(json.dumps(content))


def test_a_profile_with_devices_reads_back_bit_for_bit():
    before = profile_on_devices(100 / 3)
    after = Profile.from_json(before.to_json())
    assert after == before
    assert after.to_json() == before.to_json()
    assert after.network.devices.merge == MERGE


def test_a_profile_of_before_has_no_devices():
    before = profile_on_devices(None)
    content = json.loads(before.to_json())
    del content["network"]["devices"]
    assert Profile.from_json(json.dumps(content)) == before


def test_a_profile_of_before_has_no_times_of_dense_sums():
    before = profile_on_devices(None)
    content = json.loads(before.to_json())
    for name in ("take", "pass", "write"):
        del content["machine"][f"{name}_seconds_per_entry"]
    after = Profile.from_json(json.dumps(content))
    assert after == before
    assert not after.machine.knows_dense_sums


def test_it_is_explained_by_whose_links_each_bucket_goes():
    profile = profile_on_devices(100)
    plan = make_plan(profile, RULES)
    rows = explain(plan, profile)
    assert [row.route for row in rows] == [bucket.route for bucket in plan.buckets]
    assert ROUNDS in {row.route for row in rows}


@pytest.fixture
def run(tmp_path):
    """Returns a function that runs the command plan on a profile."""

    def invoke(profile, *arguments):
        file = tmp_path / "profile.json"
        profile.save(file)
        result = CliRunner().invoke(cli.app, ["plan", "--profile", str(file), *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    return invoke


def test_the_command_tells_which_links_it_reckons_with(run):
    said = run(profile_on_devices(100), "--collective", "gtopk")
    assert "16 ranks, 1 Gb/s, 50 us a message; between devices 100 Gb/s, 20 us a message" in said
    assert "gtopk, device rounds" in said
    assert "device" not in run(profile_on_devices(None), "--collective", "gtopk")


def test_the_command_plans_for_more_ranks_with_devices_and_for_other_networks_without(run):
    options = ("--json", "--collective", "gtopk")
    found = json.loads(run(profile_on_devices(100), *options, "--ranks", "64"))
    routes = {
        row["values"]: row["route"] for row in found["buckets"] if row["collective"] == "gtopk"
    }
    assert routes == {"float32": ROUNDS, "int4": CALLS}
    rules = rules_of(LAGS(collective="gtopk"), OnDevice)
    expected = make_plan(profile_on_devices(100).scaled(size=64), rules)
    assert Plan.from_json(json.dumps(found["plan"])) == expected
    assumed = json.loads(run(profile_on_devices(100), *options, "--bandwidth", "1Gbps"))
    assert {row["route"] for row in assumed["buckets"]} == {CALLS}
