"""The rules that a user's compression sets for a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_sparse.compression import LAGS, Adaptive, Collective, Wire
from hvd_sparse.compression.collectives import COLLECTIVES
from hvd_sparse.places.place import OnDevice
from hvd_sparse.planning.network import Link
from hvd_sparse.planning.planner import Rules, make_plan, rules_of
from tests.profiles import deep_profile, gigabits


@pytest.mark.parametrize(
    ("compression", "changes"),
    [
        (LAGS(), {}),
        (LAGS(density=0.05), {"density": 0.05}),
        (LAGS(adaptive=Adaptive(rule="paper")), {"rule": "paper"}),
        (
            LAGS(collective=Collective(name="gtopk", slack=2.0)),
            {"collectives": ("gtopk",), "collective_options": {"slack": 2.0}},
        ),
        (LAGS(wire=Wire(indices="packed")), {"wires": ("packed",)}),
        (LAGS(wire=Wire(indices="plain")), {"wires": ("plain",)}),
        (LAGS(wire="bfloat16"), {"values": ("bfloat16",), "dense_values": ("bfloat16",)}),
        (LAGS(wire="float32"), {"values": ("float32",), "dense_values": ("float32",)}),
        (LAGS(sparsifier="top_k"), {}),
        (LAGS(collective=Collective(nodes_first=True)), {"nodes_first": (True,)}),
        (LAGS(collective=Collective(nodes_first=False)), {"nodes_first": (False,)}),
    ],
)
def test_every_option_that_a_plan_depends_on_is_a_rule(compression, changes):
    bare = {
        "density": 0.01,
        "collectives": ("allgather", "recursive_doubling", "shard_topk"),
        "wires": ("plain", "packed"),
        "collective_options": {"slack": 1.0},
        "values": ("float32", "int4"),
        "dense_values": ("float32", "bfloat16", "int8"),
        "dense_sums": ("dense", "shard_sum"),
        "nodes_first": (False, True),
        "select_on": "caller",
        "reserve": 0.5,
    }
    assert rules_of(compression) == Rules(**{**bare, **changes})


def test_a_device_selects_beside_and_takes_no_sums_of_a_node():
    rules = rules_of(LAGS(), OnDevice)
    assert rules.select_on == "engine"
    assert rules.allowed == rules_of(LAGS()).allowed
    assert rules.nodes_first == (False,)
    assert rules.dense_sums == ("dense", "shard_sum")


@pytest.mark.parametrize("rate", [0.1, 1, 10])
@pytest.mark.parametrize("size", [2, 16])
def test_a_bare_plan_has_no_collective_that_returns_entries(rate, size):
    plan = make_plan(deep_profile(40, rate=rate, size=size), replace(rules_of(LAGS()), dense=False))
    taken = {bucket.collective for bucket in plan.buckets}
    assert taken
    assert "gtopk" not in taken


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("nodes_first", [True, False])
def test_a_collective_is_taken_where_it_is_named(name, nodes_first):
    profile = deep_profile(40)
    two_on_a_node = replace(
        profile, network=gigabits(1, 16, local_size=2, local=Link(alpha=1e-6, beta=1e-10))
    )
    rules = rules_of(LAGS(collective=Collective(name=name, nodes_first=nodes_first)))
    plan = make_plan(two_on_a_node, replace(rules, dense=False))
    assert {bucket.collective for bucket in plan.buckets} == {name}
    assert {bucket.nodes_first for bucket in plan.buckets} == {nodes_first}
