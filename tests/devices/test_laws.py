"""The laws, on ranks that are threads of one process."""

from __future__ import annotations

import itertools
import math

import numpy as np
import oracle
import pytest

from hvd_sparse import _core
from hvd_sparse.compression.collectives import COLLECTIVES
from hvd_sparse.errors import ExchangeFailedError, InvalidArgumentError
from tests import laws
from tests.cases import in_turn

EVERY_PAIR = [(s, c) for s in _core.sparsifiers() for c in _core.collectives()]
RANKS = [1, 2, 4, 8, 3, 5, 6, 7, 9, 17, 16]  # each density meets numbers with and without guests
DENSITIES = [0.001, 0.05, 0.5, 1.0]


def run_ranks(size, segments, density, sparsifier, collective, program, *, device, slack=1.0):
    """Runs `program(rank)` on `size` threads; returns the results by rank.

    `slack` is that of all ranks, or a list with one for each.
    """
    return laws.on_threads(
        size,
        program,
        each=lambda rank: {"slack": slack[rank] if isinstance(slack, list) else slack},
        segments=segments,
        density=density,
        sparsifier=sparsifier,
        collective=collective,
        device=device,
    )


@pytest.mark.parametrize(
    ("size", "sparsifier", "collective", "density"),
    in_turn(RANKS, _core.sparsifiers(), _core.collectives(), DENSITIES),
)
def test_laws_hold_over_several_steps(size, sparsifier, collective, density, device):
    ranks = run_ranks(
        size,
        [1000, 1, 0, 3333],
        density,
        sparsifier,
        collective,
        lambda me: me.run(6),
        device=device,
    )
    laws.check_laws(ranks)
    laws.check_something_was_applied(ranks)


@pytest.mark.parametrize(
    ("sparsifier", "collective", "segments", "size"),
    in_turn(_core.sparsifiers(), _core.collectives(), [[0], [0, 0], [1], [2, 0, 1]], [1, 2, 3]),
)
def test_laws_hold_for_tiny_buckets(sparsifier, collective, segments, size, device):
    ranks = run_ranks(
        size, segments, 0.5, sparsifier, collective, lambda me: me.run(4), device=device
    )
    laws.check_laws(ranks)


@pytest.mark.parametrize(
    ("sparsifier", "collective"), in_turn(_core.sparsifiers(), _core.collectives())
)
def test_laws_hold_at_64_ranks(sparsifier, collective, device):
    ranks = run_ranks(64, [2000], 0.01, sparsifier, collective, lambda me: me.run(3), device=device)
    laws.check_laws(ranks)


@pytest.mark.parametrize("size", [*RANKS, 33])
@pytest.mark.parametrize("collective", sorted(oracle.COLLECTIVES))
def test_top_k_through_a_collective_equals_the_oracle(size, collective, device):
    expected = oracle.COLLECTIVES[collective]
    numel, density = 1500, 0.02
    ranks = run_ranks(
        size, [numel], density, "top_k", collective, lambda me: me.run(5), device=device
    )
    check_against_the_reference(ranks, numel, 30, expected)


@pytest.mark.parametrize("size", [*RANKS, 33])
@pytest.mark.parametrize("density", [0.02, 0.1, 0.6])
def test_the_largest_sums_of_shards_equal_the_oracle(size, density, device):
    segments = [700, 0, 90, 710]
    ks = [max(1, math.ceil(density * n)) if n else 0 for n in segments]
    ranks = run_ranks(
        size, segments, density, "top_k", "shard_topk", lambda me: me.run(5), device=device
    )
    for step in zip(*ranks, strict=True):
        accumulated = [r.gradient + r.residual_before for r in step]
        total, residuals = oracle.shard_topk(accumulated, segments, ks)
        for rank, residual in zip(step, residuals, strict=True):
            np.testing.assert_array_equal(rank.total, total)
            np.testing.assert_array_equal(rank.residual_after, residual)


def check_against_the_reference(ranks, numel, k, expected):
    for step in zip(*ranks, strict=True):
        blocks = [oracle.top_k(r.gradient + r.residual_before, k) for r in step]
        reduced = expected(blocks, k)
        for rank, delivered in zip(step, reduced.delivered, strict=True):
            np.testing.assert_array_equal(rank.total, reduced.block.to_dense(numel))
            np.testing.assert_array_equal(
                rank.residual_after,
                oracle.settle(rank.gradient + rank.residual_before, delivered),
            )


@pytest.mark.parametrize("size", [*RANKS, 33])
@pytest.mark.parametrize("slack", [1.01, 1.5, 4.0, 1e300])
def test_gtopk_with_slack_equals_the_reference(size, slack, device):
    numel, density, k = 1500, 0.02, 30
    ranks = run_ranks(
        size, [numel], density, "top_k", "gtopk", lambda me: me.run(4), slack=slack, device=device
    )
    laws.check_laws(ranks)
    in_numpy = min(slack, 50.0)  # 50 k is the bucket
    check_against_the_reference(
        ranks, numel, k, lambda blocks, k: oracle.gtopk(blocks, k, in_numpy)
    )


@pytest.mark.parametrize("size", [2, 4, 8, 16, 32])
def test_gtopk_with_slack_enough_for_all_entries_is_the_exact_top_k_of_the_sum(size, device):
    numel, k = 1500, 30
    ranks = run_ranks(
        size,
        [numel],
        0.02,
        "top_k",
        "gtopk",
        lambda me: me.run(2),
        slack=float(size),
        device=device,
    )
    for step in zip(*ranks, strict=True):
        blocks = [oracle.top_k(r.gradient + r.residual_before, k) for r in step]
        exact = oracle.keep_top_k(oracle.allgather(blocks).block, k)
        np.testing.assert_array_equal(step[0].total, exact.to_dense(numel))


@pytest.mark.parametrize("size", [2, 3, 4, 8, 9])
@pytest.mark.parametrize("collective", [c.name for c in COLLECTIVES.values() if c.delivers_all])
def test_a_collective_that_delivers_all_applies_the_largest_sums_in_full(size, collective, device):
    numel, k = 1500, 30
    ranks = run_ranks(size, [numel], 0.02, "top_k", collective, lambda me: me.run(3), device=device)
    for step in zip(*ranks, strict=True):
        blocks = [oracle.top_k(r.gradient + r.residual_before, k) for r in step]
        exact = oracle.keep_top_k(oracle.allgather(blocks).block, k)
        np.testing.assert_array_equal(
            oracle.top_k(step[0].total, k).to_dense(numel), exact.to_dense(numel)
        )


@pytest.mark.parametrize("slack", [0.99, 0.0, -1.0, math.nan, math.inf])
def test_a_slack_that_keeps_less_than_k_is_refused(slack, device):
    with pytest.raises(InvalidArgumentError, match=r"slack must lie in \[1, inf\), got"):
        run_ranks(1, [100], 0.1, "top_k", "gtopk", lambda me: me, slack=slack, device=device)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_ranks_with_different_slack_are_told(size, device):
    slack = [1.0] * (size - 1) + [2.0]
    with pytest.raises(
        ExchangeFailedError, match=r"gtopk with slack [12], .*; rank \d .* slack [12],"
    ):
        run_ranks(
            size, [100], 0.1, "top_k", "gtopk", lambda me: me.run(1), slack=slack, device=device
        )


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
@pytest.mark.parametrize(
    ("collective", "other"),
    list(itertools.permutations(COLLECTIVES, 2)),
)
def test_ranks_with_different_collectives_are_told(size, collective, other, device):
    def program(me):
        with pytest.raises(ExchangeFailedError, match=rf"{collective} with slack|{other} with"):
            me.run(1)

    laws.on_threads(
        size,
        program,
        each=lambda rank: {"collective": other if rank == size - 1 else collective},
        segments=[1000],
        density=0.1,
        sparsifier="top_k",
        device=device,
    )


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("average", [True, False])
def test_a_gradient_type_that_rounds_loses_nothing(dtype, size, average, device):
    # Sums up to 8 * 2100 do not fit float16's 11 bits; with P = 2^n every share is exact.
    def program(me):
        return [
            me.step(
                (me.rank * 263 + np.arange(me.numel) + step).astype(dtype),
                output_scale=1 / size if average else 1.0,
            )
            for step in range(4)
        ]

    ranks = run_ranks(size, [300], 0.5, "top_k", "gtopk", program, device=device)
    laws.check_laws(ranks)


def constant_gradients(kind, rank, numel):
    return {
        "zeros": np.zeros(numel, np.float32),
        "ties": np.full(numel, 2.0, np.float32),
        "zeros on one rank": np.full(numel, float(rank % 2), np.float32),
        "cancelling": np.full(numel, 1.0 if rank % 2 else -1.0, np.float32),
        "denormals": np.arange(numel, dtype=np.float32) * np.float32(1e-45),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "sparsifier", "collective", "size"),
    in_turn(
        ["zeros", "ties", "zeros on one rank", "cancelling", "denormals"],
        _core.sparsifiers(),
        _core.collectives(),
        [1, 2, 3, 6],
    ),
)
def test_laws_hold_for_degenerate_gradients(kind, sparsifier, collective, size, device):
    def program(me):
        return [me.step(constant_gradients(kind, me.rank, me.numel)) for _ in range(3)]

    laws.check_laws(
        run_ranks(size, [500, 77], 0.02, sparsifier, collective, program, device=device)
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    ("sparsifier", "collective"),
    [(s, c) for s, c in EVERY_PAIR if laws.EVERY_SPARSIFIER[s].bounds[0] > 0],
)
def test_full_density_applies_the_whole_sum(size, sparsifier, collective, device):
    ranks = run_ranks(size, [257], 1.0, sparsifier, collective, lambda me: me.run(1), device=device)
    expected = sum(r[0].gradient for r in ranks)
    np.testing.assert_array_equal(ranks[0][0].total, expected)
