"""The configuration of sparsifiers by users; tests/devices tests what they select."""

from __future__ import annotations

import pytest

from hvd_sparse import _core_testing
from hvd_sparse.compression.sparsifiers import (
    Gaussian,
    HardThreshold,
    RandomK,
    Sampled,
    Sidco,
    as_sparsifier,
)
from hvd_sparse.errors import InvalidArgumentError


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
        _core_testing.Selector(name, options, numel=10, k=1)
