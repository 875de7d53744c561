"""The plan: k per layer and step."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hvd_sparse.compression import LAGS, GTopK, Layers, Warmup, Wire
from hvd_sparse.compression.buckets import Bucket, Layer
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning import plan

BUCKET = Bucket((Layer("a", 1000), Layer("b", 50)), layer_wise=True)


@pytest.mark.parametrize(
    ("numel", "density", "k"),
    [
        (1000, 0.001, 1),
        (1001, 0.001, 2),
        (100, 0.07, 7),  # 0.07 * 100 is 7.000000000000001 in floating point
        (25_600_000, 0.001, 25_600),
        (10, 1e-9, 1),
        (10, 1.0, 10),
        (1, 0.5, 1),
        (0, 0.5, 0),
    ],
)
def test_k_is_the_density_of_the_layer_rounded_up_and_at_least_one(numel, density, k):
    assert plan.entries_to_send(numel, density) == k


def test_each_segment_has_its_own_k():
    assert plan.ks_at(BUCKET, (0.1, 0.5), None, 0) == [100, 25]
    whole = Bucket(BUCKET.layers, layer_wise=False)
    assert plan.ks_at(whole, (0.1,), None, 0) == [105]


def test_a_warm_up_changes_k_and_memory_is_made_for_the_largest():
    warmup = Warmup(steps=2, densities=(0.5, 0.1))
    assert [plan.ks_at(BUCKET, (0.01, 0.2), warmup, step) for step in range(0, 6, 2)] == [
        [500, 25],
        [100, 10],
        [10, 10],
    ]
    assert plan.largest_ks(BUCKET, (0.01, 0.2), warmup) == [500, 25]
    assert plan.largest_ks(BUCKET, (0.01, 0.2), None) == [10, 10]


LAYERS = (Layer("a", 1000), Layer("b", 50))


@pytest.mark.parametrize(
    ("compression", "expected"),
    [
        (LAGS(density=0.1), [("a", "b")]),
        (LAGS(density=0.1, layers=Layers(bucket_numel=1000)), [("a",), ("b",)]),
    ],
)
def test_a_fixed_compression_has_one_density_and_stands_in_for_auto(compression, expected):
    choices = plan.fixed_choices(LAYERS, compression)
    assert [choice.layers for choice in choices] == expected
    for choice in choices:
        assert choice.densities == (0.1,) * len(choice.layers)
        assert (choice.collective, choice.wire, choice.dense) == ("allgather", "plain", False)


def test_a_fixed_compression_keeps_what_it_names():
    compression = GTopK(collective="allgather", wire=Wire(indices="packed", values="float16"))
    (choice,) = plan.fixed_choices(LAYERS, compression)
    assert choice.densities == (0.001,)  # the whole model is one unit
    assert (choice.collective, choice.wire, choice.values) == ("allgather", "packed", "float16")


@pytest.mark.parametrize(
    ("collective", "nodes_first", "size", "local_size", "shared"),
    [
        ("gtopk", False, 8, 4, False),
        ("gtopk", True, 8, 4, True),
        ("allgather", True, 4, 4, True),
        ("shard_sum", False, 8, 4, True),
        ("shard_sum", False, 4, 4, False),
        ("shard_sum", False, 4, 1, False),
    ],
)
def test_ranks_of_a_node_share_a_residual_where_nodes_are_summed_first(
    collective, nodes_first, size, local_size, shared
):
    choice = plan.BucketChoice(
        layers=("a",),
        densities=(1.0,),
        collective=collective,
        wire="plain",
        nodes_first=nodes_first,
    )
    assert choice.shares_residual(size=size, local_size=local_size) is shared


def a_plan(**changes):
    bucket = plan.BucketPlan(
        layers=("a",), numels=(1000,), densities=(0.1,), collective="gtopk", wire="plain",
        select_seconds=0.0, exchange_seconds=1.0,
    )  # fmt: skip
    return plan.Plan(
        buckets=(replace(bucket, **changes),), size=2, step_seconds=1.0, dense_seconds=2.0,
        compute_seconds=0.5,
    )  # fmt: skip


def test_plans_of_different_values_decide_differently():
    assert a_plan().decides_like(a_plan(exchange_seconds=2.0))
    assert not a_plan().decides_like(a_plan(values="bfloat16"))


def test_a_saved_plan_keeps_its_values_and_an_older_one_has_float32():
    saved = a_plan(values="bfloat16").to_json()
    assert plan.Plan.from_json(saved) == a_plan(values="bfloat16")
    content = json.loads(saved)
    del content["buckets"][0]["values"]
    assert plan.Plan.from_json(json.dumps(content)) == a_plan()
    with pytest.raises(InvalidArgumentError, match=r"values of a bucket must be one of .*'int2'"):
        a_plan(values="int2")
