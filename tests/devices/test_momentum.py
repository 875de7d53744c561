"""Momentum correction with factor masking, on ranks that are threads: nothing is lost.

The velocity joins the residual. Momentum is 1/2 and gradients are integers, so all sums are exact
for some steps.
"""

from __future__ import annotations

import numpy as np
import oracle
import pytest

from hvd_sparse import _core
from hvd_sparse.errors import InvalidArgumentError, NonFiniteGradientError
from hvd_sparse.exchange.exchange import Exchange
from tests import laws
from tests.device_array import DeviceArray

MOMENTUM = 0.5
SEGMENTS = [1000, 1, 0, 333]
EVERY_PAIR = [(s, c) for s in _core.sparsifiers() for c in _core.collectives()]


def run_ranks(size, sparsifier, collective, program, *, segments=SEGMENTS, **options):
    """Runs `program(rank)` on threads; returns the results by rank."""
    return laws.on_threads(
        size,
        program,
        segments=segments,
        density=0.05,
        sparsifier=sparsifier,
        collective=collective,
        momentum=MOMENTUM,
        **options,
    )


def grown(step):
    """Returns the velocity that joins the residual."""
    return np.float32(MOMENTUM) * step.velocity_before + step.gradient


def check_law(ranks):
    """Checks that sums applied and residuals equal the old residuals plus joined velocities."""
    for step in zip(*ranks, strict=True):
        laws.check_replicas_are_bitwise_equal(list(step))
        came_in = sum(r.residual_before.astype(np.float64) + grown(r) for r in step)
        is_there = step[0].total + sum(r.residual_after.astype(np.float64) for r in step)
        np.testing.assert_array_equal(came_in, is_there)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("sparsifier", "collective"), EVERY_PAIR)
def test_nothing_is_lost_and_velocities_leave_with_what_is_delivered(
    size, sparsifier, collective, device
):
    ranks = run_ranks(size, sparsifier, collective, lambda me: me.run(6), device=device)
    check_law(ranks)
    masked = 0
    for rank, steps in enumerate(ranks):
        has_shard = collective == "shard_topk" and size > 1  # where other ranks' entries wait, too
        shard = slice(*(sum(SEGMENTS) * end // size for end in (rank, rank + has_shard)))
        for step in steps:
            delivered = step.residual_before + grown(step) != step.residual_after
            delivered[shard] = step.total[shard] != 0
            masked += np.count_nonzero(delivered)
            np.testing.assert_array_equal(step.velocity_after[delivered], 0.0)
            stays = ~delivered & (step.residual_after != 0)  # a zero may have been delivered, too
            np.testing.assert_array_equal(step.velocity_after[stays], grown(step)[stays])
    assert masked > 0


@pytest.mark.parametrize("layout", [(2, 2), (4, 2), (6, 3)])
def test_in_a_sum_of_nodes_velocities_of_the_whole_result_leave(layout):
    size, local_size = layout
    ranks = run_ranks(
        size, "top_k", "gtopk", lambda me: me.run(5), local_size=local_size, nodes_first=True
    )
    check_law(ranks)
    for step in (step for rank in ranks for step in rank):
        applied = step.total != 0
        assert applied.any()
        np.testing.assert_array_equal(step.velocity_after[applied], 0.0)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("collective", ["allgather", "gtopk"])
def test_it_equals_the_paper_in_numpy(size, collective, device):
    numel, k = 1000, 50
    ranks = run_ranks(
        size, "top_k", collective, lambda me: me.run(6), segments=[numel], device=device
    )
    velocity, residual = (np.zeros((size, numel), np.float32) for _ in range(2))
    for step in zip(*ranks, strict=True):
        velocity = np.float32(MOMENTUM) * velocity + np.stack([r.gradient for r in step])
        residual += velocity
        blocks = [oracle.top_k(row, k) for row in residual]
        exchange = {"allgather": oracle.allgather, "gtopk": lambda b: oracle.gtopk(b, k)}
        reduced = exchange[collective](blocks)
        for rank, delivered in enumerate(reduced.delivered):
            velocity[rank, delivered] = residual[rank, delivered] = 0
            np.testing.assert_array_equal(step[rank].velocity_after, velocity[rank])
            np.testing.assert_array_equal(step[rank].residual_after, residual[rank])
        np.testing.assert_array_equal(step[0].total, reduced.block.to_dense(numel))


@pytest.mark.parametrize("collective", ["allgather", "gtopk", "shard_topk"])
def test_a_refused_step_delivers_nothing_and_keeps_what_is_finite(collective, device):
    def program(me):
        first = me.step(laws.integer_gradient(me.numel, rank=me.rank, step=0))
        gradient = laws.integer_gradient(me.numel, rank=me.rank, step=1)
        if me.rank == 1:
            gradient[7] = np.nan
        me.start(gradient)
        with pytest.raises(NonFiniteGradientError, match="rank 1"):
            me.finish()
        finite = np.where(np.isfinite(gradient), gradient, 0)
        velocity = np.float32(MOMENTUM) * first.velocity_after + finite
        np.testing.assert_array_equal(me.velocity, velocity)
        np.testing.assert_array_equal(me.residual, first.residual_after + velocity)
        return me.run(3)

    check_law(run_ranks(4, "top_k", collective, program, local_size=2, device=device))


@pytest.mark.parametrize(
    ("momentum", "numel", "match"),
    [
        (1.0, 10, r"momentum must lie in \[0, 1\), got 1"),
        (-0.5, 10, r"momentum must lie in \[0, 1\), got -0.5"),
        (0.5, 9, "velocity must have 10 elements, got 9"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(momentum, numel, match, device):
    exchange = Exchange.over_loopback(_core.LoopbackWorld(1), 0)
    me = laws.Rank(exchange, 0, [10], 0.5, "top_k", "allgather", momentum=momentum, device=device)
    me.velocity_array = DeviceArray(device, np.zeros(numel))
    with pytest.raises(InvalidArgumentError, match=match):
        me.run(1)
    exchange.close()
