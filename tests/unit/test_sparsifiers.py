"""Sparsifiers as users configure them; what they choose is tested in tests/csrc."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_sparse import _core
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.sparsifiers import (
    SPARSIFIERS,
    Gaussian,
    HardThreshold,
    RandomK,
    Sampled,
    Sidco,
    as_sparsifier,
)
from tests.laws import EVERY_SPARSIFIER, buffer_of

NUMEL, K = 20_000, 200


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Gaussian(refresh=0), r"refresh must lie in \[1, 1048576\], got 0"),
        (lambda: Gaussian(refresh=2.5), "refresh must be an integer, got 2.5"),
        (lambda: Sampled(fraction=0), r"fraction must lie in \(0, 1\], got 0.0"),
        (lambda: Sampled(fraction=1.01), r"fraction must lie in \(0, 1\], got 1.01"),
        (lambda: Sampled(fraction="all"), r"fraction must be a number, got 'all' \(str\)"),
        (lambda: Sampled(fraction=float("nan")), "fraction must be a number, got nan"),
        (lambda: HardThreshold(threshold=0), "threshold must be > 0 and finite in float32, got 0"),
        (lambda: HardThreshold(threshold=-1), "threshold must be > 0 and finite in float32"),
        (lambda: HardThreshold(threshold=1e39), "finite in float32, got 1e.39"),
        (lambda: HardThreshold(threshold=True), r"threshold must be a number, got True \(bool\)"),
        (lambda: RandomK(seed=2**54), "seed must lie in"),
        (lambda: RandomK(seed=0.5), "seed must be an integer, got 0.5"),
    ],
)
def test_an_option_outside_its_limits_is_refused(make, match):
    with pytest.raises(InvalidArgumentError, match=match):
        make()


def test_an_instance_stands_for_itself():
    made = Gaussian(refresh=8)
    assert as_sparsifier(made) is made
    assert as_sparsifier("sidco") == Sidco()


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("median", {}, "sparsifier must be one of top_k, gaussian, .*; got 'median'"),
        ("top_k", {"k": 3}, "sparsifier 'top_k' has no option 'k'"),
        ("hard_threshold", {}, "option threshold of the sparsifier must be given"),
        ("gaussian", {"refresh": 0}, "refresh of gaussian must be >= 1, got 0"),
    ],
)
def test_the_core_refuses_what_it_does_not_know(name, options, match):
    with pytest.raises(InvalidArgumentError, match=match):
        _core.Selector(name, options, numel=10, k=1)


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_the_core_takes_the_options_and_keeps_the_bounds(name):
    sparsifier = EVERY_SPARSIFIER[name]
    least, most = sparsifier.bounds
    selector = _core.Selector(name, sparsifier.options, numel=NUMEL, k=K)
    residual, state = np.zeros(NUMEL, np.float32), np.zeros((1, 4), np.float32)
    random = np.random.default_rng(1)
    for _ in range(20):
        gradient = random.standard_t(3, NUMEL).astype(np.float32)
        accumulated = residual + gradient
        bad = selector.select(
            buffer_of(gradient), decay=1.0, scale=1.0, residual=buffer_of(residual),
            state=buffer_of(state),
        )  # fmt: skip
        block = selector.block
        assert bad == 0
        assert least * K <= block.count <= most * K
        assert np.array_equal(block.values(), accumulated[block.indices()])
        accumulated[block.indices()] = 0
        assert residual.tobytes() == accumulated.tobytes()


def test_random_k_draws_the_same_entries_on_every_rank():
    draws = []
    for rank in range(3):
        selector = _core.Selector("random_k", {"seed": 5}, numel=NUMEL, k=K)
        residual, state = np.zeros(NUMEL, np.float32), np.zeros((1, 4), np.float32)
        gradient = np.random.default_rng(rank).normal(size=NUMEL).astype(np.float32)
        mine = []
        for _ in range(3):
            selector.select(
                buffer_of(gradient), decay=1.0, scale=1.0, residual=buffer_of(residual),
                state=buffer_of(state),
            )  # fmt: skip
            mine.append(selector.block.indices())
        draws.append(mine)
    for step in zip(*draws, strict=True):
        assert all(np.array_equal(step[0], other) for other in step[1:])
    assert not np.array_equal(draws[0][0], draws[0][1])
