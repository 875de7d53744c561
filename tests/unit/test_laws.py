"""The laws, on ranks that are threads of one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hvd_sparse import _core, reference
from hvd_sparse.exchange import Exchange
from tests import laws

EVERY_PAIR = [(s, c) for s in _core.sparsifiers() for c in _core.collectives()]
RANKS = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17]


def run_ranks(size, segments, density, sparsifier, collective, program):
    """Runs `program(rank)` on `size` threads; returns what they return, by rank."""
    world = _core.LoopbackWorld(size)

    def one(rank):
        exchange = Exchange.over_loopback(world, rank)
        try:
            me = laws.Rank(exchange, rank, segments, density, sparsifier, collective)
            return program(me)
        finally:
            exchange.close()

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(one, range(size)))


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize(("sparsifier", "collective"), EVERY_PAIR)
@pytest.mark.parametrize("density", [0.001, 0.05, 0.5, 1.0])
def test_laws_hold_over_several_steps(size, sparsifier, collective, density):
    ranks = run_ranks(
        size, [1000, 1, 0, 3333], density, sparsifier, collective, lambda me: me.run(6)
    )
    laws.check_laws(ranks)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(("sparsifier", "collective"), EVERY_PAIR)
@pytest.mark.parametrize("segments", [[], [0], [1], [2, 0, 1]])
def test_laws_hold_for_tiny_buckets(size, sparsifier, collective, segments):
    ranks = run_ranks(size, segments, 0.5, sparsifier, collective, lambda me: me.run(4))
    laws.check_laws(ranks)


@pytest.mark.parametrize(("sparsifier", "collective"), EVERY_PAIR)
def test_laws_hold_at_64_ranks(sparsifier, collective):
    ranks = run_ranks(64, [2000], 0.01, sparsifier, collective, lambda me: me.run(3))
    laws.check_laws(ranks)


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        ("allgather", lambda blocks, k: reference.allgather(blocks)),
        ("gtopk", reference.gtopk),
    ],
    ids=["allgather", "gtopk"],
)
def test_top_k_through_a_collective_equals_the_reference(size, collective, expected):
    numel, density = 1500, 0.02
    ranks = run_ranks(size, [numel], density, "top_k", collective, lambda me: me.run(5))
    k = 30
    for step in zip(*ranks, strict=True):
        blocks = [reference.top_k(r.gradient + r.residual_before, k) for r in step]
        reduced = expected(blocks, k)
        for rank, delivered in zip(step, reduced.delivered, strict=True):
            np.testing.assert_array_equal(rank.total, reduced.block.to_dense(numel))
            np.testing.assert_array_equal(
                rank.residual_after,
                reference.settle(rank.gradient + rank.residual_before, delivered),
            )


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("average", [True, False])
def test_a_gradient_type_that_rounds_loses_nothing(dtype, size, average):
    # Sums up to 8 * 2100 do not fit float16's 11 bits; with P = 2^n every share is exact.
    def program(me):
        return [
            me.step(
                (me.rank * 263 + np.arange(me.numel) + step).astype(dtype),
                output_scale=1 / size if average else 1.0,
            )
            for step in range(4)
        ]

    ranks = run_ranks(size, [300], 0.5, "top_k", "gtopk", program)
    laws.check_laws(ranks)


def constant_gradients(kind, rank, numel):
    return {
        "zeros": np.zeros(numel, np.float32),
        "ties": np.full(numel, 2.0, np.float32),
        "zeros on one rank": np.full(numel, float(rank % 2), np.float32),
        "cancelling": np.full(numel, 1.0 if rank % 2 else -1.0, np.float32),
        "denormals": np.arange(numel, dtype=np.float32) * np.float32(1e-45),
    }[kind]


@pytest.mark.parametrize("kind", ["zeros", "ties", "zeros on one rank", "cancelling", "denormals"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(("sparsifier", "collective"), EVERY_PAIR)
def test_laws_hold_for_degenerate_gradients(size, sparsifier, collective, kind):
    def program(me):
        return [me.step(constant_gradients(kind, me.rank, me.numel)) for _ in range(3)]

    laws.check_laws(run_ranks(size, [500, 77], 0.02, sparsifier, collective, program))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    ("sparsifier", "collective"),
    [(s, c) for s, c in EVERY_PAIR if laws.EVERY_SPARSIFIER[s].bounds[0] > 0],
)
def test_full_density_applies_the_whole_sum(size, sparsifier, collective):
    ranks = run_ranks(size, [257], 1.0, sparsifier, collective, lambda me: me.run(1))
    expected = sum(r[0].gradient for r in ranks)
    np.testing.assert_array_equal(ranks[0][0].total, expected)
