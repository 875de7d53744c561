"""A residual that grows without bound is told once; one in balance is not."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from hvd_sparse.planning.plan import BucketChoice
from hvd_sparse.stats.residual_growth import (
    DOUBLINGS,
    GROWTH,
    TERNARY_WAIT,
    WAITS,
    ResidualGrowth,
    grows,
)

STEPS = [64 * 2**n for n in range(8)]


def choice(collective, *densities, values="float32"):
    return BucketChoice(
        layers=("a",) * len(densities), densities=densities, collective=collective, wire="plain",
        values=values,
    )  # fmt: skip


SPARSE = [choice("gtopk", 0.5, 0.0625)]
DENSE = [choice("dense", 1.0)]


def norms(power):
    return [(steps, float(steps) ** power) for steps in STEPS]


@pytest.mark.parametrize(("power", "grown"), [(0, False), (0.3, False), (0.5, True), (1, True)])
def test_a_random_walk_grows_and_a_balance_does_not(power, grown):
    assert grows(norms(power), after=0) is grown


def test_doublings_that_are_early_few_or_apart_do_not_count():
    walk = norms(0.5)
    assert not grows(walk, after=STEPS[-1 - DOUBLINGS] + 1)
    assert not grows(walk[:DOUBLINGS], after=0)
    assert not grows([*walk[:4], *walk[5:]], after=0)  # a norm was not noted: all was dense
    settled = [*walk[:-1], (STEPS[-1], walk[-2][1] * (GROWTH - 0.01))]
    assert not grows(settled, after=0)


def warnings_of(growth, choices, caplog):
    caplog.clear()
    with caplog.at_level(logging.WARNING, "hvd_sparse"):
        for end in range(1, len(STEPS) + 1):
            engine = SimpleNamespace(residual_norms=norms(1)[:end])
            growth.end_step(STEPS[end - 1], engine, choices)
            growth.end_step(STEPS[end - 1] + 1, engine, choices)
    return caplog.messages


def test_it_warns_once_on_rank_0_after_several_waits_of_an_entry(caplog):
    found = warnings_of(ResidualGrowth(0), SPARSE, caplog)
    first = next(steps for steps in STEPS if steps >= WAITS / 0.0625)
    assert len(found) == 1
    assert f"was {first} after {first} steps and is {8 * first} after {8 * first}" in found[0]
    assert "density 0.0625" in found[0]
    assert not warnings_of(ResidualGrowth(1), SPARSE, caplog)
    assert not warnings_of(ResidualGrowth(0), DENSE, caplog)


@pytest.mark.parametrize("values", ["float32", "bfloat16", "int4"])
def test_rounding_errors_may_grow_with_the_gradients(caplog, values):
    assert not warnings_of(ResidualGrowth(0), [choice("shard_sum", 1.0, values=values)], caplog)


def test_ternary_values_are_granted_a_longer_wait(caplog):
    ternary = choice("shard_sum", 1.0, values="ternary")
    (found,) = warnings_of(ResidualGrowth(0), [ternary, *SPARSE], caplog)
    first = next(steps for steps in STEPS if steps >= WAITS * TERNARY_WAIT)
    assert f"after {first} steps" in found
    assert found.endswith("use a smaller scale, or wider values")
