"""The laws of the dense sum: nothing is lost, whatever is rounded; ranks are threads.

On a GPU, no node is summed first: there, ranks that share a node are ranks like others.
"""

from __future__ import annotations

import numpy as np
import pytest

from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.errors import ExchangeFailedError, NonFiniteGradientError
from tests import laws
from tests.cases import in_turn
from tests.device_array import CPU

VALUES = ["float32", "bfloat16", "float16", "int8", "int4", "ternary"]
SEGMENTS = [1000, 1, 0, 3333]
# (ranks, ranks per node)
LAYOUTS = [(size, 1) for size in (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)]
LAYOUTS += [(2, 2), (4, 2), (4, 4), (6, 2), (6, 3), (8, 4), (12, 4), (15, 3), (16, 2)]


def run_ranks(layout, program, *, segments=SEGMENTS, **options):
    """Runs `program(rank)` on threads; `layout` has the ranks, and the ranks per node."""
    size, local_size = layout
    return laws.on_threads(
        size,
        program,
        local_size=local_size,
        segments=segments,
        density=1.0,
        sparsifier="top_k",
        collective=SHARD_SUM,
        **options,
    )


def run_rough(me, steps, factor=301):
    """Runs steps with integers that narrow types mostly round; float32 holds their sums."""
    return [
        me.step(
            np.clip(laws.integer_gradient(me.numel, rank=me.rank, step=step), -100, 100) * factor
        )
        for step in range(steps)
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("values", VALUES)
def test_laws_hold_over_several_steps(layout, values, device):
    ranks = run_ranks(layout, lambda me: run_rough(me, 5), values=values, device=device)
    laws.check_laws(ranks)
    laws.check_something_was_applied(ranks)


@pytest.mark.parametrize("layout", [(1, 1), (2, 1), (3, 1), (5, 1), (4, 2)])
@pytest.mark.parametrize("values", VALUES)
def test_gradients_do_not_share_a_scale(layout, values, device):
    """A gradient of large values does not round all of its neighbour's to zero."""
    numels = [600, 1, 1000, 0, 7]
    magnitudes = np.repeat([1, 1 << 12, 1 << 6, 1, 1 << 9], numels)

    def program(me):
        rough = [
            laws.integer_gradient(me.numel, rank=me.rank, step=step) * magnitudes
            for step in range(6)
        ]
        return [me.step(one.astype(np.float32)) for one in rough]

    ranks = run_ranks(layout, program, segments=numels, numels=numels, values=values, device=device)
    laws.check_laws(ranks)
    assert all(step.total[:600].any() for step in ranks[0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_float32_holds_nothing_back(layout, device):
    ranks = run_ranks(layout, lambda me: me.run(3), device=device)
    for step in zip(*ranks, strict=True):
        total = sum(rank.gradient.astype(np.float64) for rank in step)
        for rank in step:
            np.testing.assert_array_equal(rank.total, total)
            assert not rank.residual_after.any()


@pytest.mark.parametrize("values", VALUES[:-1])  # ternary values have no error here
def test_each_error_stays_with_one_rank(values, device):
    """A rank keeps the error of what it sends, and an owner that of its shard's sum."""
    size, numel = 4, 400

    def program(me):
        return me.step(np.full(numel, 1 + 2.0**-20, np.float32))

    ranks = run_ranks((size, 1), program, segments=[numel], values=values, device=device)
    own_error = {"float32": 0}.get(values, 2.0**-20)
    for rank, step in enumerate(ranks):
        expected = np.full(numel, own_error)
        shard = slice(numel * rank // size, numel * (rank + 1) // size)
        expected[shard] = 0 if values == "float32" else 2.0**-20  # of its own part of the sum
        np.testing.assert_array_equal(step.residual_after, expected)


# A power of two: each rank returns its share of what the gradient's type rounds away.
@pytest.mark.parametrize("layout", [(1, 1), (2, 1), (8, 1), (4, 2), (8, 2)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("values", VALUES)
def test_gradients_of_other_types_lose_nothing(layout, dtype, values, device):
    ranks = run_ranks(layout, lambda me: me.run(4), dtype=dtype, values=values, device=device)
    laws.check_laws(ranks)


@pytest.mark.parametrize("layout", [(1, 1), (2, 1), (5, 1), (4, 2)])
@pytest.mark.parametrize("values", VALUES)
def test_velocities_join_and_are_kept(layout, values, device):
    ranks = run_ranks(layout, lambda me: me.run(4), values=values, momentum=0.5, device=device)
    for step in zip(*ranks, strict=True):
        laws.check_replicas_are_bitwise_equal(list(step))
        grown = [np.float32(0.5) * r.velocity_before + r.gradient for r in step]
        came_in = sum(
            r.residual_before.astype(np.float64) + g for r, g in zip(step, grown, strict=True)
        )
        is_there = step[0].total + sum(r.residual_after.astype(np.float64) for r in step)
        np.testing.assert_array_equal(came_in, is_there)
        for rank, velocity in zip(step, grown, strict=True):
            np.testing.assert_array_equal(rank.velocity_after, velocity)


@pytest.mark.parametrize("segments", [[0], [0, 0], [1], [2, 0, 1]])
@pytest.mark.parametrize("layout", [(1, 1), (2, 1), (3, 1), (6, 1), (4, 2)])
def test_small_buckets(layout, segments, device):
    laws.check_laws(run_ranks(layout, lambda me: me.run(3), segments=segments, device=device))


@pytest.mark.parametrize("values", VALUES)
def test_a_bucket_that_travels_in_several_chunks(values):
    numel = 9 << 20
    draws = np.random.default_rng(0).integers(-100, 100, numel).astype(np.float32)

    def program(me):
        return me.step(draws + me.rank)

    laws.check_laws(
        [[step] for step in run_ranks((2, 1), program, segments=[numel], values=values)]
    )


@pytest.mark.parametrize("layout", [(2, 1), (3, 1), (9, 1), (4, 2)])
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_refused_step_leaves_the_residual_bit_for_bit(layout, values, dtype, device):
    size = layout[0]

    def program(me):
        run_rough(me, 2, factor=3)
        before = me.residual.copy()
        gradient = laws.integer_gradient(me.numel, rank=me.rank, step=7).astype(dtype)
        sent = gradient.copy()
        if me.rank == size - 1:
            sent[123], gradient[123] = np.nan, 0
        with pytest.raises(NonFiniteGradientError, match=f"gradient of rank {size - 1} in"):
            me.step(sent)
        np.testing.assert_array_equal(me.residual, before + gradient.astype(np.float32))
        return me.run(2)

    laws.check_laws(run_ranks(layout, program, segments=[400], values=values, device=device))


@pytest.mark.parametrize("layout", [(2, 1), (4, 1), (4, 2)])
@pytest.mark.parametrize("values", ["float32", "float16", "bfloat16"])
def test_a_sum_that_overflows_is_undone_but_for_its_cause(layout, values, device):
    def program(me):
        laws.refused_for_an_overflow(me)

    run_ranks(layout, program, segments=[40], values=values, device=device)


@pytest.mark.parametrize(("other", "size"), in_turn(VALUES[1:], [2, 3, 5]))
def test_ranks_of_different_values_are_told(size, other):
    def program(me):
        with pytest.raises(ExchangeFailedError, match=r"the ranks disagree: .* float32 values"):
            me.run(1)

    laws.on_threads(
        size,
        program,
        each=lambda rank: {"values": other if rank == 0 else "float32"},
        segments=SEGMENTS,
        density=1.0,
        sparsifier="top_k",
        collective=SHARD_SUM,
    )


def test_gradients_lie_on_gpus_on_all_ranks_or_on_none(gpu):
    def program(me):
        with pytest.raises(ExchangeFailedError, match=r"the ranks disagree: .* from a GPU"):
            me.run(1)

    laws.on_threads(
        2,
        program,
        each=lambda rank: {"device": gpu if rank == 0 else CPU},
        segments=SEGMENTS,
        density=1.0,
        sparsifier="top_k",
        collective=SHARD_SUM,
    )


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("values", VALUES)
def test_a_gpu_has_the_bits_of_the_cpu(gpu, values, dtype, momentum):
    numels = [5200, 1, 63, 0, 321]  # beyond a tile, and around blocks that share a scale

    def program(me):
        steps = []
        for step in range(3):
            draws = np.random.default_rng([me.rank, step])
            rough = draws.standard_normal(me.numel) * 10.0 ** draws.integers(-9, 4, me.numel)
            steps.append(me.step(rough.astype(np.float32)))
        return steps

    def bits_on(device):
        ranks = run_ranks(
            (3, 1),
            program,
            segments=numels,
            numels=numels,
            values=values,
            dtype=dtype,
            momentum=momentum,
            device=device,
        )
        return [
            (step.total.tobytes(), step.residual_after.tobytes()) for rank in ranks for step in rank
        ]

    assert bits_on(gpu) == bits_on(CPU)


def test_a_bucket_on_a_gpu_travels_in_several_chunks(gpu):
    draws = np.random.default_rng(0).integers(-100, 100, (3 << 18) + 5).astype(np.float32)
    ranks = run_ranks(
        (3, 1),
        lambda me: [me.step(draws + me.rank)],
        segments=[draws.size],
        device=gpu,
    )
    laws.check_laws(ranks)
