"""Robust averages, in place of the dense sum; ranks are threads."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from hvd_sparse.compression.collectives import RULES
from hvd_sparse.errors import InvalidArgumentError, NonFiniteGradientError
from tests import laws, robust_oracle
from tests.cases import in_turn
from tests.device_array import CPU

# The most that a value is rounded, relative to itself, and to the largest of those around it.
ROUNDING = {
    "float32": (2e-6, 0),
    "bfloat16": (2**-8, 0),
    "float16": (2**-10, 0),
    "int8": (0, 1 / 127),
}
SEGMENTS = [5000, 1, 0, 3333]


def gradient_of(rank, numel, step=0):
    """Returns a gradient like those of the other ranks: what they have in common, and noise."""
    common = np.random.default_rng([step, 1]).standard_normal(numel)
    own = np.random.default_rng([step, 2, rank]).standard_normal(numel)
    return (common + 0.5 * own).astype(np.float32)


def run_ranks(size, program, *, rule, bad=1, segments=SEGMENTS, **options):
    """Runs `program(rank)` on threads."""
    return laws.on_threads(
        size,
        program,
        segments=segments,
        density=1.0,
        sparsifier="top_k",
        collective=rule,
        bad_ranks=bad,
        **options,
    )


def cases():
    """Returns rules, bad ranks and ranks, as few as it takes and more, with widths in turn."""
    every = [
        (rule, bad, factor * bad + more + others)
        for rule, (factor, more) in robust_oracle.LEAST.items()
        for bad in (1, 2)
        for others in (0, 1, 4)
    ]
    narrow = [width for width in ROUNDING if width != "float32"]
    both = [*itertools.product(every, ["float32"]), *in_turn(every, narrow)]
    return [(*case, width) for case, width in both]


@pytest.mark.parametrize(("rule", "bad", "size", "values"), cases())
def test_ranks_apply_the_rules_average(rule, bad, size, values, device):
    def program(me):
        return [
            (me.step(gradient_of(me.rank, me.numel, step), output_scale=1 / size), me.stats)
            for step in range(3)
        ]

    ranks = run_ranks(size, program, rule=rule, bad=bad, values=values, device=device)
    for of_step in zip(*ranks, strict=True):
        steps, stats = zip(*of_step, strict=True)
        laws.check_replicas_are_bitwise_equal(list(steps))
        votes = np.array(
            [
                (one.gradient + one.residual_before).astype(np.float64) - one.residual_after
                for one in steps
            ]
        )
        average, left_out = robust_oracle.average(rule, votes, bad)
        relative, absolute = ROUNDING[values]
        scale = np.abs(average).max()
        np.testing.assert_allclose(
            steps[0].total / size, average, rtol=relative, atol=1e-6 + absolute * scale
        )
        for rank, one in enumerate(stats):
            numel = votes.shape[1]
            own = slice(numel * rank // size, numel * (rank + 1) // size)
            assert one.averaged == own.stop - own.start
            assert one.left_out == left_out[:, own].sum(axis=1).tolist()
            # What a rank sends keeps its rounding error there; its own shard is not rounded.
            assert not steps[rank].residual_after[own].any()


@pytest.mark.parametrize("rule", RULES)
def test_a_bad_rank_cannot_steer_the_average(rule, device):
    """Its values may be as large as float32 holds; a mean of them would overflow."""
    size, bad_rank = 7, 3

    def program(me):
        gradient = gradient_of(me.rank, me.numel)
        if me.rank == bad_rank:
            gradient = np.full(me.numel, 3e38, np.float32)
            gradient[::2] *= -1
        step = me.step(gradient, output_scale=1 / size)
        return step, me.stats

    steps, stats = zip(*run_ranks(size, program, rule=rule, device=device), strict=True)
    good = np.array([step.gradient for rank, step in enumerate(steps) if rank != bad_rank])
    average = steps[0].total / size
    slack = 1e-5 * np.abs(good).max()
    assert (average <= good.max(axis=0) + slack).all()
    assert (average >= good.min(axis=0) - slack).all()
    assert all(one.left_out[bad_rank] == one.averaged for one in stats)


@pytest.mark.parametrize("rule", ["median", "multi_krum"])
@pytest.mark.parametrize(("size", "numel"), [(5, 1_200_000), (35, 70_000), (7, 3)])
def test_averages_take_several_chunks_and_many_ranks(rule, size, numel):
    def program(me):
        return me.step(gradient_of(me.rank, me.numel), output_scale=1 / size)

    steps = run_ranks(size, program, rule=rule, segments=[numel])
    laws.check_replicas_are_bitwise_equal(steps)
    votes = np.array([one.gradient for one in steps], np.float64)
    average, _ = robust_oracle.average(rule, votes, 1)
    np.testing.assert_allclose(steps[0].total / size, average, rtol=1e-5, atol=1e-6)


def test_nodes_are_not_summed_first():
    """The sum of a node would hide its bad rank."""

    def program(me):
        step = me.step(gradient_of(me.rank, me.numel), output_scale=1 / 6)
        return step, me.stats

    ranks = run_ranks(6, program, rule="median", local_size=2)
    steps, stats = zip(*ranks, strict=True)
    votes = np.array([one.gradient for one in steps], np.float64)
    average, _ = robust_oracle.average("median", votes, 1)
    np.testing.assert_allclose(steps[0].total / 6, average, rtol=1e-5, atol=1e-6)
    assert all(len(one.left_out) == 6 for one in stats)


@pytest.mark.parametrize("rule", ["median", "bulyan"])
def test_a_refused_step_returns_to_the_residuals(rule, device):
    def program(me):
        first = gradient_of(me.rank, me.numel)
        poisoned = first.copy()
        poisoned[7] = np.nan if me.rank == 2 else poisoned[7]
        with pytest.raises(NonFiniteGradientError, match="rank 2"):
            me.step(poisoned)
        finite = np.where(np.isnan(poisoned), 0, poisoned)
        assert me.residual.tobytes() == finite.tobytes()
        return me.step(np.zeros(me.numel, np.float32), output_scale=1 / 7)

    steps = run_ranks(7, program, rule=rule, values="int8", device=device)
    laws.check_replicas_are_bitwise_equal(steps)
    assert steps[0].total.any()


@pytest.mark.parametrize("rule", RULES)
def test_too_few_ranks_are_refused_before_anything_is_sent(rule):
    factor, more = robust_oracle.LEAST[rule]
    size = 2 * factor + more - 1
    says = f"bad_ranks of {rule} must be at most 1 between {size} ranks"

    def program(rank):
        raise AssertionError("the bucket was added")

    with pytest.raises(InvalidArgumentError, match=re.escape(says)):
        run_ranks(size, program, rule=rule, bad=2)


@pytest.mark.parametrize("rule", RULES)
def test_an_empty_bucket_and_shards_without_entries_are_averaged(rule):
    for numel in (0, 1, 4):
        ranks = run_ranks(
            7, lambda me: me.step(gradient_of(me.rank, me.numel)), rule=rule, segments=[numel]
        )
        laws.check_replicas_are_bitwise_equal(ranks)


@pytest.mark.parametrize("rule", RULES)
def test_a_rank_alone_keeps_its_gradient(rule):
    (step,) = run_ranks(1, lambda me: me.step(gradient_of(0, me.numel)), rule=rule, device=CPU)
    np.testing.assert_array_equal(step.total, step.gradient)
