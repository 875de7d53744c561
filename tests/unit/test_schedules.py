"""Warm-up: larger densities first, the compression's own at the end."""

from __future__ import annotations

import pytest

from hvd_sparse.compression import Warmup
from hvd_sparse.errors import InvalidArgumentError


def test_each_density_lasts_for_its_steps():
    warmup = Warmup(steps=2, densities=(0.25, 0.1))
    assert [warmup.density_at(step, 0.01) for step in range(6)] == [
        0.25, 0.25, 0.1, 0.1, 0.01, 0.01,
    ]  # fmt: skip


def test_a_warm_up_never_falls_below_the_final_density():
    warmup = Warmup(steps=1, densities=(0.25, 0.001))
    assert [warmup.density_at(step, 0.01) for step in range(3)] == [0.25, 0.01, 0.01]


def test_the_default_densities_are_the_papers():
    warmup = Warmup(steps=100)
    assert [warmup.density_at(100 * epoch, 0.001) for epoch in range(6)] == [
        0.25, 0.0625, 0.015625, 0.004, 0.001, 0.001,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("densities", "final", "largest"), [((0.5, 0.1), 0.2, 0.5), ((), 0.2, 0.2)]
)
def test_the_largest_density_is_known_beforehand(densities, final, largest):
    assert Warmup(steps=1, densities=densities).largest(final) == largest


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"steps": 0}, "Warmup steps must lie in"),
        ({"steps": 2.5}, "Warmup steps must be an integer, got 2.5"),
        ({"steps": 1, "densities": (0.5, 0.0)}, r"a Warmup density must lie in \(0, 1\], got 0.0"),
        ({"steps": 1, "densities": ("a",)}, "a Warmup density must be a number"),
        ({"steps": 1, "densities": 0.5}, "Warmup densities must be a sequence of numbers, got 0.5"),
        ({"steps": 1, "densities": "0.5"}, "Warmup densities must be a sequence"),
    ],
)
def test_bad_schedules_are_refused(options, match):
    with pytest.raises(InvalidArgumentError, match=match):
        Warmup(**options)
