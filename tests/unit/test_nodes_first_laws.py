"""The laws if ranks share nodes: a node's residuals are summed before selection."""

from __future__ import annotations

import itertools
import math
from threading import Barrier

import numpy as np
import oracle
import pytest

from hvd_sparse import _core
from hvd_sparse.errors import ExchangeFailedError, InvalidArgumentError, NonFiniteGradientError
from hvd_sparse.exchange.exchange import Exchange
from tests import laws
from tests.cases import in_turn

# (ranks, ranks per node)
LAYOUTS = [(2, 2), (3, 3), (4, 2), (4, 4), (6, 2), (6, 3), (8, 2), (8, 4), (12, 4), (15, 3)]
LAYOUTS += [(16, 2), (16, 4), (16, 16)]
DTYPES = ["float32", "bfloat16", "float16", "int8", "int4"]
FORMATS = [(packed, dtype) for packed in (False, True) for dtype in DTYPES]


def run_ranks(layout, program, *, wire=(False, "float32"), **changes):
    """Runs `program(rank)` on threads; returns the results by rank.

    Args:
        layout: Number of ranks, and of ranks per node.
        program: Function that each rank runs.
        wire: (packed, values), or a list with one for each rank.
        changes: Changes to the options below.
    """
    options = {
        "segments": [1000, 1, 0, 3333],
        "density": 0.05,
        "sparsifier": "top_k",
        "collective": "gtopk",
        "nodes_first": True,
    }

    def format_of(rank):
        packed, values = wire[rank] if isinstance(wire, list) else wire
        return {"packed": packed, "values": values}

    size, local_size = layout
    return laws.on_threads(
        size, program, each=format_of, local_size=local_size, **(options | changes)
    )


def check_shards(ranks, local_size):
    """Checks that a rank's residual is zero outside its own shard."""
    for rank, steps in enumerate(ranks):
        for step in steps:
            numel, local_rank = step.residual_after.size, rank % local_size
            begin, end = (numel * j // local_size for j in (local_rank, local_rank + 1))
            assert not step.residual_after[:begin].any()
            assert not step.residual_after[end:].any()


@pytest.mark.parametrize(
    ("layout", "collective", "sparsifier", "density"),
    in_turn(LAYOUTS, _core.collectives(), _core.sparsifiers(), [0.01, 1.0]),
)
def test_laws_hold_over_several_steps(layout, collective, sparsifier, density):
    ranks = run_ranks(
        layout,
        lambda me: me.run(5),
        collective=collective,
        sparsifier=sparsifier,
        density=density,
    )
    laws.check_laws(ranks)
    check_shards(ranks, layout[1])


@pytest.mark.parametrize(
    ("layout", "wire", "collective"), in_turn(LAYOUTS, FORMATS, _core.collectives())
)
def test_laws_hold_in_every_wire_format(layout, wire, collective):
    def program(me):
        rough = [
            np.clip(laws.integer_gradient(me.numel, rank=me.rank, step=step), -100, 100) * 301
            for step in range(5)
        ]
        return [me.step(gradient) for gradient in rough]

    ranks = run_ranks(layout, program, wire=wire, collective=collective)
    laws.check_laws(ranks)
    check_shards(ranks, layout[1])


EXCHANGES = {(name, 1.0): exchange for name, exchange in oracle.COLLECTIVES.items()} | {
    ("gtopk", 1.5): lambda blocks, k: oracle.gtopk(blocks, k, 1.5)
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("collective", "slack"), EXCHANGES)
def test_it_equals_the_reference(layout, collective, slack):
    segments, density = [700, 0, 90, 710], 0.02
    ks = [max(1, math.ceil(density * n)) if n else 0 for n in segments]
    ranks = run_ranks(
        layout,
        lambda me: me.run(5),
        segments=segments,
        density=density,
        collective=collective,
        slack=slack,
    )
    for step in zip(*ranks, strict=True):
        accumulated = [r.gradient + r.residual_before for r in step]
        total, residuals = oracle.nodes_first(
            accumulated, segments, ks, layout[1], EXCHANGES[collective, slack]
        )
        for rank, residual in zip(step, residuals, strict=True):
            np.testing.assert_array_equal(rank.total, total)
            np.testing.assert_array_equal(rank.residual_after, residual)


@pytest.mark.parametrize("layout", [(3, 3), (8, 4)])
def test_sums_of_a_node_are_added_in_a_fixed_order(layout):
    # With non-integers, another order would give other bits.
    def program(me):
        draws = np.random.default_rng(me.rank)
        return [me.step(draws.standard_normal(me.numel, dtype=np.float32)) for _ in range(3)]

    segments = [1500]
    ranks = run_ranks(layout, program, segments=segments, density=0.02)
    for step in zip(*ranks, strict=True):
        accumulated = [r.gradient + r.residual_before for r in step]
        total, residuals = oracle.nodes_first(accumulated, segments, [30], layout[1], oracle.gtopk)
        for rank, residual in zip(step, residuals, strict=True):
            assert rank.total.tobytes() == total.astype(np.float64).tobytes()
            np.testing.assert_array_equal(rank.residual_after, residual)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("sparsifier", _core.sparsifiers())
@pytest.mark.parametrize("wire", [(False, "float32"), (True, "bfloat16")])
def test_with_one_rank_on_a_node_it_is_the_collective_alone(size, sparsifier, wire):
    def program(me):
        draws = np.random.default_rng(me.rank)
        return [me.step(draws.standard_normal(me.numel, dtype=np.float32)) for _ in range(3)]

    both = [
        run_ranks((size, 1), program, nodes_first=first, sparsifier=sparsifier, wire=wire)
        for first in (True, False)
    ]
    for ours, theirs in zip(*both, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.total.tobytes() == other.total.tobytes()
            assert one.residual_after.tobytes() == other.residual_after.tobytes()


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_on_one_node_alone_the_exact_top_k_of_each_shard_of_the_sum_is_applied(size):
    numel, k = 1200, 60
    ranks = run_ranks((size, size), lambda me: me.run(3), segments=[numel], density=k / numel)
    for step in zip(*ranks, strict=True):
        total = np.sum([r.gradient + r.residual_before for r in step], axis=0)
        bounds = [numel * j // size for j in range(size + 1)]
        expected = np.zeros(numel, np.float32)
        for begin, end in itertools.pairwise(bounds):
            shard = total[begin:end]
            share = -(-k * shard.size // numel)
            expected[begin:end] = oracle.top_k(shard, share).to_dense(shard.size)
        np.testing.assert_array_equal(step[0].total, expected)


@pytest.mark.parametrize("layout", [(3, 3), (6, 3)])
@pytest.mark.parametrize("sparsifier", _core.sparsifiers())
@pytest.mark.parametrize("segments", [[0], [0, 0], [1], [2, 0, 1], [5, 8]])
def test_laws_hold_for_buckets_smaller_than_a_node(layout, sparsifier, segments):
    ranks = run_ranks(
        layout, lambda me: me.run(4), segments=segments, density=0.5, sparsifier=sparsifier
    )
    laws.check_laws(ranks)


@pytest.mark.parametrize("layout", [(2, 2), (4, 2), (8, 4)])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("average", [True, False])
def test_a_gradient_type_that_rounds_loses_nothing(layout, dtype, average):
    # Sums exceed float16's 11 bits; the owners of a shard share the rounding errors.
    def program(me):
        return [
            me.step(
                (me.rank * 263 + np.arange(me.numel) + step).astype(dtype),
                output_scale=1 / layout[0] if average else 1.0,
            )
            for step in range(4)
        ]

    ranks = run_ranks(layout, program, segments=[300], density=0.5)
    laws.check_laws(ranks)


def undone_on_every_rank(me, sent, entered, match):
    """Checks that a refused step leaves the residual as error feedback made it, bit for bit.

    `entered` has zeros in place of what is not finite, or so large that a sum overflows.
    """
    before = me.residual.copy()
    with pytest.raises(NonFiniteGradientError, match=match):
        me.step(sent)
    assert me.residual.tobytes() == (before + entered).tobytes()


@pytest.mark.parametrize("layout", [(2, 2), (4, 2), (12, 4), (15, 3)])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("select_on", ["caller", "engine"])
def test_a_step_with_a_bad_gradient_on_one_rank_is_undone_on_all(layout, bad, select_on):
    def program(me):
        me.run(2)
        gradient = laws.integer_gradient(me.numel, rank=me.rank, step=7)
        sent = gradient.copy()
        if me.rank == layout[0] - 1:
            sent[123], gradient[123] = bad, 0
        undone_on_every_rank(me, sent, gradient, f"gradient of rank {layout[0] - 1} in")
        return me.run(2)

    ranks = run_ranks(layout, program, segments=[400], density=0.1, select_on=select_on)
    laws.check_laws(ranks)


@pytest.mark.parametrize("layout", [(2, 2), (4, 2), (6, 3)])
def test_a_sum_of_a_node_that_overflows_is_undone_even_if_it_is_not_selected(layout):
    def program(me):
        gradient = np.zeros(me.numel, np.float32)
        if me.rank < layout[1]:
            gradient[5:25] = 3e38  # more than are selected
        kept = np.where(gradient > 1, 0, gradient)
        undone_on_every_rank(me, gradient, kept, "residuals of a node .* overflows")
        me.step(np.ones(me.numel, np.float32))

    run_ranks(layout, program, segments=[40], density=0.05, sparsifier="random_k")


@pytest.mark.parametrize("layout", [(2, 2), (6, 3)])
def test_a_float16_sum_that_overflows_is_undone(layout):
    def program(me):
        gradient = np.full(me.numel, 60000, np.float16)
        gradient[4:] = 2
        kept = np.where(gradient > 2, 0, gradient).astype(np.float32)
        undone_on_every_rank(me, gradient.copy(), kept, "overflows in")
        me.step(np.ones(me.numel, np.float16))

    run_ranks(layout, program, segments=[40], density=0.5)


@pytest.mark.parametrize("layout", [(2, 2), (4, 2), (12, 4)])
def test_residuals_may_lie_anywhere_when_a_step_begins(layout):
    def program(me):
        me.residual[:] = laws.integer_gradient(me.numel, rank=me.rank, step=99)
        return me.run(3)

    ranks = run_ranks(layout, program)
    laws.check_laws(ranks)
    check_shards(ranks, layout[1])


@pytest.mark.parametrize("layout", [(2, 2), (4, 4), (4, 2), (16, 4)])
def test_it_sends_the_bytes_that_are_promised(layout):
    size, local_size = layout
    numel, k, header = 16_000, 320, 32

    def program(me):
        me.step(laws.integer_gradient(me.numel, rank=me.rank, step=0, correlation=0) + 2000)
        return me.stats.bytes_sent

    shards = (local_size - 1) * (header + 4 * numel // local_size)
    block = header + 8 * k // local_size
    gather = (local_size - 1) * block
    between = round(math.log2(size // local_size)) * block
    sent = run_ranks(layout, program, segments=[numel], density=k / numel)
    assert sent == [shards + gather + between] * size


@pytest.mark.parametrize(("size", "local_size"), [(3, 2), (5, 4), (7, 3)])
def test_unequal_nodes_are_refused_by_name_when_the_bucket_is_added(size, local_size):
    def program(me):
        raise AssertionError("the bucket was added")

    nodes = " ".join(str(rank // local_size) for rank in range(size))
    with pytest.raises(InvalidArgumentError, match=f"the ranks are on nodes {nodes}$"):
        run_ranks((size, local_size), program)
    ranks = run_ranks((size, local_size), lambda me: me.run(2), nodes_first=False)
    laws.check_laws(ranks)


@pytest.mark.parametrize("local_size", [0, -1])
def test_a_node_of_no_ranks_is_refused(local_size):
    with pytest.raises(InvalidArgumentError, match=f"local_size must be .* got {local_size}"):
        Exchange.over_loopback(_core.LoopbackWorld(2), 0, local_size=local_size)


@pytest.mark.parametrize("layout", [(2, 2), (4, 4), (4, 2)])
def test_ranks_that_are_asked_for_different_densities_are_told(layout):
    def ask(me):
        me.ks = [10 if me.rank == 0 else 20]
        me.run(1)

    def at_first(me):
        with pytest.raises(ExchangeFailedError, match=r", k [12]0, .*; rank \d .*, k [12]0, "):
            ask(me)

    meeting = Barrier(layout[0])

    def later(me):
        me.run(1)
        meeting.wait()
        with pytest.raises(ExchangeFailedError, match=r"asked for [12]0 entries, rank . for"):
            ask(me)

    for program in (at_first, later):
        run_ranks(layout, program, segments=[100], density=0.2)


@pytest.mark.parametrize("layout", [(2, 2), (4, 4), (4, 2)])
def test_ranks_of_different_formats_are_told(layout):
    wires = [(False, "float32")] * (layout[0] - 1) + [(True, "float32")]

    def program(me):
        with pytest.raises(ExchangeFailedError, match=r"the ranks disagree: .* packed indices"):
            me.run(1)

    run_ranks(layout, program, wire=wires)


def test_a_rank_that_disagrees_later_is_named_as_in_the_exchange():
    meeting = Barrier(6)

    def program(me):
        me.run(1)
        meeting.wait()
        if me.rank == 5:  # the last rank of its node, and the last owner of its shard
            me.ks = [6]
        with pytest.raises(ExchangeFailedError, match=r"rank 5 (was asked )?for 6( entries|$)"):
            me.run(1)

    run_ranks((6, 3), program, segments=[300], density=0.1)
