"""The laws of binary values: a rank sends one number, and keeps all that differs from it."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_sparse.errors import ExchangeFailedError, InvalidArgumentError, NonFiniteGradientError
from tests import laws
from tests.cases import in_turn

BINARY = {"sparsifier": "one_sign", "collective": "allgather", "values": "binary"}


def run_ranks(size, program, **options):
    """Runs `program(rank)` on `size` threads whose buckets have binary values."""
    return laws.on_threads(size, program, **BINARY | options)


def gaussian_gradient(numel, *, rank, step):
    """Returns a gradient whose sums are rounded, and a few of whose entries are zeros."""
    rng = np.random.default_rng([step, rank])
    gradient = rng.standard_normal(numel).astype(np.float32)
    gradient[rng.random(numel) < 0.05] = 0
    return gradient


def sent_by(step):
    """Returns what a rank has sent, in float64: what it had and no longer has."""
    had = (step.residual_before + step.gradient).astype(np.float64)
    sent = had - step.residual_after
    # The residual is the value without what was sent, exactly, and fits float32.
    np.testing.assert_array_equal(sent, sent.astype(np.float32))
    return sent


def added_in_pairs(parts):
    """Returns the float32 sum of arrays, added pair by pair in the order of the ranks."""
    parts = [part.astype(np.float32) for part in parts]
    distance = 1
    while distance < len(parts):
        for rank in range(0, len(parts) - distance, 2 * distance):
            parts[rank] += parts[rank + distance]
        distance *= 2
    return parts[0]


def check_laws(ranks, k):
    """Checks all steps of all ranks, ranks[rank][step]."""
    for step in zip(*ranks, strict=True):
        laws.check_replicas_are_bitwise_equal(list(step))
        parts = [sent_by(one) for one in step]
        for part in parts:
            assert np.count_nonzero(part) <= k
            assert len(set(part[part != 0])) <= 1 or len(ranks) == 1
        np.testing.assert_array_equal(step[0].total, added_in_pairs(parts))


@pytest.mark.parametrize(
    ("size", "numel", "density", "packed"),
    in_turn([1, 2, 3, 4, 5, 8, 9, 17], [1, 2, 100, 5000], [0.01, 0.3, 1.0], [False, True]),
)
def test_every_value_is_the_number_that_was_sent_and_the_error(
    size, numel, density, packed, device
):
    def program(me):
        return [me.step(gaussian_gradient(numel, rank=me.rank, step=step)) for step in range(6)]

    ranks = run_ranks(
        size, program, segments=[numel], density=density, packed=packed, device=device
    )
    check_laws(ranks, max(1, int(np.ceil(density * numel))))
    laws.check_something_was_applied(ranks)


@pytest.mark.parametrize("scale", [2.0**-149, 2.0**-127, 2.0**-100, 1.0, 2.0**100, 2.0**120])
@pytest.mark.parametrize("packed", [False, True])
def test_errors_are_exact_at_every_scale(scale, packed, device):
    def program(me):
        steps = []
        for step in range(4):
            integers = laws.integer_gradient(400, rank=me.rank, step=step)
            gradient = np.clip(integers, -16, 16).astype(np.float64) * scale
            steps.append(me.step(gradient.astype(np.float32)))
        return steps

    ranks = run_ranks(3, program, segments=[400], density=0.1, packed=packed, device=device)
    check_laws(ranks, 40)
    laws.check_something_was_applied(ranks)


def test_all_zeros_and_empty_buckets_send_nothing(device):
    for segments in ([0], [0, 0], [0, 30, 0]):
        ranks = run_ranks(
            3,
            lambda me: [me.step(np.zeros(me.numel, np.float32)) for _ in range(2)],
            segments=segments,
            density=0.5,
            packed=True,
            device=device,
        )
        check_laws(ranks, 15)


def test_momentum_is_masked_where_the_number_was_sent(device):
    def program(me):
        return [me.step(gaussian_gradient(500, rank=me.rank, step=step)) for step in range(4)]

    ranks = run_ranks(3, program, segments=[500], density=0.1, momentum=0.5, device=device)
    for step in zip(*ranks, strict=True):
        laws.check_replicas_are_bitwise_equal(list(step))
        for one in step:
            velocity = np.float32(0.5) * one.velocity_before + one.gradient
            had = one.residual_before + velocity
            sent = had.astype(np.float64) - one.residual_after
            assert len(set(sent[sent != 0])) == 1
            np.testing.assert_array_equal(one.velocity_after, np.where(sent != 0, 0, velocity))


@pytest.mark.parametrize("size", [2, 3, 4, 9])
@pytest.mark.parametrize("packed", [False, True])
def test_a_refused_step_leaves_the_residual_bit_for_bit(size, packed, device):
    def program(me):
        steps = [me.step(gaussian_gradient(400, rank=me.rank, step=step)) for step in range(2)]
        before = me.residual.copy()
        gradient = gaussian_gradient(400, rank=me.rank, step=7)
        sent = gradient.copy()
        if me.rank == size - 1:
            sent[123], gradient[123] = np.nan, 0
        with pytest.raises(NonFiniteGradientError, match=f"gradient of rank {size - 1} in"):
            me.step(sent)
        assert me.residual.tobytes() == (before + gradient).tobytes()
        return [*steps, me.step(gaussian_gradient(400, rank=me.rank, step=3))]

    ranks = run_ranks(size, program, segments=[400], density=0.1, packed=packed, device=device)
    check_laws(ranks, 40)


def test_a_sum_that_overflows_is_undone_but_for_its_cause(device):
    def program(me):
        laws.refused_for_an_overflow(me)

    run_ranks(2, program, segments=[40], density=0.5, device=device)


def test_ranks_of_other_values_are_told(device):
    def program(me):
        with pytest.raises(ExchangeFailedError, match=r"the ranks disagree: .* values"):
            me.run(1)

    laws.on_threads(
        3,
        program,
        sparsifier="one_sign",
        collective="allgather",
        segments=[3000],
        density=0.01,
        each=lambda rank: {"values": "float32" if rank == 0 else "binary"},
        device=device,
    )


def test_a_block_takes_the_bits_of_its_positions_alone(device):
    numel, density, size = 200_000, 0.01, 4

    def program(me):
        me.step(gaussian_gradient(numel, rank=me.rank, step=0))
        return me.stats.bytes_sent

    sent = run_ranks(size, program, segments=[numel], density=density, packed=True, device=device)
    entries = (size - 1) * density * numel
    assert max(sent) <= entries * (np.log2(1 / density) + 2) / 8 + (size - 1) * (32 + 8 + 8 + 8)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"sparsifier": "top_k"}, "binary values take the sparsifier 'one_sign', got 'top_k'"),
        ({"collective": "gtopk"}, "binary values take the collective 'allgather', got 'gtopk'"),
        ({"segments": [20, 20]}, "binary values take one segment, got 2"),
    ],
)
def test_a_bucket_of_other_parts_is_refused(options, match, device):
    with pytest.raises(InvalidArgumentError, match=match):
        run_ranks(1, lambda me: None, **{"segments": [40], "density": 0.5} | options, device=device)


def test_a_dense_sum_has_no_binary_values(device):
    with pytest.raises(InvalidArgumentError, match=r"one of .*, ternary; got 'binary'"):
        run_ranks(
            1,
            lambda me: None,
            segments=[40],
            density=1.0,
            collective="shard_sum",
            device=device,
        )
