"""Initial values depend on seed, number and index alone, and are distributed as they should."""

from __future__ import annotations

import math

import pytest
import torch

from hvd_sparse.pytorch.initial_values import Distribution

NORMAL, UNIFORM = Distribution(0.5, 2.0, True), Distribution(-1.0, 0.25, False)


@pytest.mark.parametrize("one", [NORMAL, UNIFORM])
def test_a_value_depends_on_seed_number_and_index_alone(one):
    values = one.values(torch.empty(1000), seed=3, number=4)
    threads = torch.get_num_threads()
    torch.manual_seed(8)
    torch.set_num_threads(2)
    again = one.values(torch.empty(101, 37), seed=3, number=4).flatten()
    torch.set_num_threads(threads)
    assert torch.equal(again[:1000], values)
    for seed, number in ((4, 4), (3, 5), (4, 3)):
        assert not (one.values(torch.empty(1000), seed=seed, number=number) == values).any()


def mixed(word):
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
    return word ^ (word >> 31)


def test_values_are_made_of_the_words_of_splitmix64():
    golden = 0x9E3779B97F4A7C15
    key = mixed((mixed(7) + 2 * golden) % 2**64)
    words = [mixed((key + n * golden) % 2**64) for n in range(300)]
    uniform = UNIFORM.values(torch.empty(300, dtype=torch.float64), seed=7, number=2)
    for word, value in zip(words, uniform.tolist(), strict=True):
        assert value == ((word >> 11) * 2.0**-53 - 0.5) * math.sqrt(12) * 0.25 - 1
    normal = NORMAL.values(torch.empty(100, dtype=torch.float64), seed=7, number=2)
    for n, value in enumerate(normal.tolist()):
        total = sum(
            word >> bits & 0xFFFF for word in words[3 * n :][:3] for bits in (0, 16, 32, 48)
        )
        assert value == (total - 6 * 65535) / math.sqrt(65536.0**2 - 1) * 2 + 0.5


@pytest.mark.parametrize("one", [NORMAL, UNIFORM])
def test_values_have_the_moments_of_their_distribution(one):
    values = one.values(torch.empty(200_000, dtype=torch.float64), seed=0, number=0)
    found = Distribution.of(values)
    assert found.is_normal == one.is_normal
    assert found.mean == pytest.approx(one.mean, abs=0.01 * one.deviation)
    assert found.deviation == pytest.approx(one.deviation, rel=0.01)
    halves = values[::2] - one.mean, values[1::2] - one.mean
    assert abs(float((halves[0] * halves[1]).mean())) < 0.01 * one.deviation**2
    if not one.is_normal:
        assert float((values - one.mean).abs().max()) <= math.sqrt(3) * one.deviation


@pytest.mark.parametrize(
    ("layer", "is_normal"), [(torch.nn.Linear(300, 100), False), (torch.nn.Embedding(300, 9), True)]
)
def test_the_values_of_a_layer_tell_its_distribution(layer, is_normal):
    assert Distribution.of(layer.weight).is_normal == is_normal


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_constant_stays_as_it_is(dtype):
    constant = torch.full((5, 3), 0.1, dtype=dtype)
    assert torch.equal(Distribution.of(constant).values(constant, seed=1, number=0), constant)
    assert Distribution.of(torch.tensor(7.0)) == Distribution(7.0, 0.0, False)
