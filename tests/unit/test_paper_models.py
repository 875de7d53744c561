"""The papers' models have the published numbers of parameters and operations."""

from __future__ import annotations

import math

import pytest
from paper_figures import GTOPK_TABLE, LAGS_TABLE
from paper_models import MODELS

pytestmark = pytest.mark.long  # it looks at benchmarks alone


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ResNet-50", 25_557_032),
        ("Inception-v4", 42_679_816),
        ("LSTM-PTB", 66_034_000),
        ("VGG-16", 14_728_266),
        ("VGG-19", 143_667_240),
        ("AlexNet", 61_100_840),
        ("ResNet-20", 269_722),
        ("BERT-base", 109_483_778),  # the paper: 110 million
    ],
)
def test_a_model_has_the_published_number_of_parameters(name, parameters):
    assert MODELS[name].numel == parameters


@pytest.mark.parametrize(
    ("name", "multiply_adds"),
    [("ResNet-50", 3.8e9), ("Inception-v4", 12.3e9), ("AlexNet", 0.71e9), ("ResNet-20", 41e6)],
)
def test_a_model_does_the_published_number_of_operations(name, multiply_adds):
    assert MODELS[name].flops / 2 == pytest.approx(multiply_adds, rel=0.03)


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_names_are_unique_and_tensors_not_empty(model):
    names = [tensor.name for tensor in model.tensors]
    assert len(set(names)) == len(names)
    assert all(tensor.numel > 0 for tensor in model.tensors)
    assert all(layer.tensors and layer.flops > 0 for layer in model.layers)


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        ("ResNet-50", {"stem.weight": (64, 3, 7, 7), "stage4.2.conv3.weight": (2048, 512, 1, 1),
                       "stage2.0.shortcut.weight": (512, 256, 1, 1)}),
        ("VGG-16", {"stage5.2.weight": (512, 512, 3, 3), "stage5.2_norm.bias": (512,)}),
        ("AlexNet", {"linear1.weight": (4096, 9216)}),
        ("LSTM-PTB", {"lstm1.weight_hh": (6000, 1500), "decoder.weight": (10000, 1500)}),
    ],
)  # fmt: skip
def test_tensors_have_the_shapes_of_the_architecture(model, shapes):
    have = {tensor.name: tensor.shape for tensor in MODELS[model].tensors}
    assert {name: have.get(name) for name in shapes} == shapes


def test_a_time_is_spread_by_operations_and_nothing_is_lost():
    model = MODELS["AlexNet"]
    shares = model.spread(2.0)
    assert math.fsum(shares) == pytest.approx(2.0, rel=1e-12)
    first, second = model.layers[:2]
    assert shares[0] / shares[1] == pytest.approx(first.flops / second.flops)


@pytest.mark.parametrize("row", LAGS_TABLE + GTOPK_TABLE, ids=lambda row: row.model)
def test_published_rows_are_of_known_models_and_cost_more_than_compute(row):
    assert row.model in MODELS
    assert all(seconds > row.compute for seconds in row.steps.values())


def test_published_ratios_are_those_that_the_papers_quote():
    lags = {row.model: row for row in LAGS_TABLE}
    for model, over_dense, over_slgs in (
        ("ResNet-50", 2.86, 1.31), ("Inception-v4", 3.08, 1.28), ("LSTM-PTB", 8.52, 1.12)
    ):  # fmt: skip
        assert lags[model].speed_up("LAGS", "dense") == pytest.approx(over_dense, rel=0.01)
        assert lags[model].speed_up("LAGS", "SLGS") == pytest.approx(over_slgs, rel=0.015)
    gtopk = {row.model: row for row in GTOPK_TABLE}
    assert gtopk["VGG-16"].speed_up("gTop-k", "dense") == pytest.approx(9.8, rel=0.01)
    assert gtopk["LSTM-PTB"].speed_up("gTop-k", "SLGS") == pytest.approx(2.0, rel=0.01)
