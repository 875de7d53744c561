"""The plan: k per layer and step."""

from __future__ import annotations

import pytest

from hvd_sparse.buckets import Bucket, Layer
from hvd_sparse.compression import LAGS, GTopK
from hvd_sparse.planning import plan
from hvd_sparse.schedules import Warmup

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
        (LAGS(density=0.1, bucket_numel=1000), [("a",), ("b",)]),
    ],
)
def test_a_fixed_compression_has_one_density_and_stands_in_for_auto(compression, expected):
    choices = plan.fixed_choices(LAYERS, compression)
    assert [choice.layers for choice in choices] == expected
    for choice in choices:
        assert choice.densities == (0.1,) * len(choice.layers)
        assert (choice.collective, choice.wire, choice.dense) == ("allgather", "plain", False)


def test_a_fixed_compression_keeps_what_it_names():
    (choice,) = plan.fixed_choices(LAYERS, GTopK(collective="allgather", indices="packed"))
    assert choice.densities == (0.001,)  # the whole model is one unit
    assert (choice.collective, choice.wire) == ("allgather", "packed")
