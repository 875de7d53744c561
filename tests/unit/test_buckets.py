"""Buckets: all layers, once each, in their order, within the limit."""

from __future__ import annotations

import pytest

from hvd_sparse.compression.buckets import Layer, assign_buckets
from hvd_sparse.errors import UnsupportedError


def layers(*numels):
    return [Layer(f"layer{i}", numel) for i, numel in enumerate(numels)]


def numels(buckets):
    return [[layer.numel for layer in bucket.layers] for bucket in buckets]


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ((), 10, []),
        ((3,), 10, [[3]]),
        ((3, 4, 3), 10, [[3, 4, 3]]),
        ((3, 4, 4), 10, [[3, 4], [4]]),
        ((30, 4, 4), 10, [[30], [4, 4]]),
        ((4, 30, 4), 10, [[4], [30], [4]]),
        ((1, 1, 1), 1, [[1], [1], [1]]),
        ((10, 10), 10, [[10], [10]]),
    ],
)
def test_layers_are_merged_in_order_up_to_the_limit(sizes, limit, expected):
    buckets = assign_buckets(layers(*sizes), bucket_numel=limit, layer_wise=True)
    assert numels(buckets) == expected
    assert [layer for bucket in buckets for layer in bucket.layers] == layers(*sizes)


def test_slices_are_of_about_the_same_size_and_buckets_of_their_own():
    small, large, last = layers(3, 25, 4)
    parts = large.slices(10)
    assert parts == (
        Layer("layer1[0:8]", 8, "layer1", 0),
        Layer("layer1[8:16]", 8, "layer1", 8),
        Layer("layer1[16:25]", 9, "layer1", 16),
    )
    assert {part.parameter for part in parts} == {large.parameter} == {"layer1"}
    assert large.slices(25) == (large,)
    buckets = assign_buckets([small, *parts, last, small], bucket_numel=20, layer_wise=True)
    assert numels(buckets) == [[3], [8], [8], [9], [4, 3]]


def test_each_layer_is_a_segment_where_selection_is_per_layer():
    (bucket,) = assign_buckets(layers(3, 4), bucket_numel=10, layer_wise=True)
    assert bucket.segments == (3, 4)
    assert bucket.numel == 7


def test_the_whole_model_is_one_segment_otherwise():
    (bucket,) = assign_buckets(layers(30, 40), bucket_numel=10, layer_wise=False)
    assert bucket.segments == (70,)


def test_a_model_beyond_32_bit_indices_takes_several_buckets():
    sizes = (1 << 30, 1 << 30, 1 << 30)
    buckets = assign_buckets(layers(*sizes), bucket_numel=1, layer_wise=False)
    assert numels(buckets) == [[1 << 30], [1 << 30], [1 << 30]]
    assert numels(assign_buckets(layers(1 << 30, 5), bucket_numel=1, layer_wise=False)) == [
        [1 << 30, 5]
    ]


def test_a_layer_beyond_32_bit_indices_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="'layer0' has 2147483648 elements"):
        assign_buckets(layers(1 << 31), bucket_numel=1 << 30, layer_wise=True)


def test_a_bucket_is_named_after_its_layers():
    one, two = assign_buckets(layers(10, 5, 5), bucket_numel=10, layer_wise=True)
    assert one.name == "layer0"
    assert two.name == "layer1 and 1 more"
