"""The laws hold in every wire format; ranks are threads of one process."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_sparse import _core
from hvd_sparse.errors import ExchangeFailedError, InvalidArgumentError, NonFiniteGradientError
from tests import laws
from tests.cases import in_turn
from tests.device_array import CPU

DTYPES = ["float32", "bfloat16", "float16", "int8", "int4"]
FORMATS = [(packed, dtype) for packed in (False, True) for dtype in DTYPES][1:]
RANKS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17]


def run_ranks(size, program, *, formats, sparsifier="top_k", **options):
    """Runs `program(rank)` on `size` threads; returns the results by rank.

    Args:
        formats: (packed, values) of the ranks, which cycle through the list.
        sparsifier: The sparsifier of all ranks; all other options are common, too.
    """

    def format_of(rank):
        packed, values = formats[rank % len(formats)]
        return {"packed": packed, "values": values}

    return laws.on_threads(size, program, each=format_of, sparsifier=sparsifier, **options)


def run_rough(me, steps, factor=301):
    """Runs steps with integers that narrow types mostly round; float32 holds their sums."""
    taken = []
    for step in range(steps):
        gradient = laws.integer_gradient(me.numel, rank=me.rank, step=step)
        taken.append(me.step(np.clip(gradient, -100, 100) * factor))
    return taken


def bits_of(dtype):
    """Returns the significant bits of the type, including the leading one."""
    return {"float32": 24, "float16": 11, "bfloat16": 8, "int8": 7, "int4": 3}[dtype]


@pytest.mark.parametrize(
    ("size", "collective", "wire", "density"),
    in_turn(RANKS, _core.collectives(), FORMATS, [0.004, 0.3]),
)
def test_laws_hold_over_several_steps(size, collective, wire, density, device):
    ranks = run_ranks(
        size,
        lambda me: run_rough(me, 6),
        segments=[1000, 1, 0, 3333],
        density=density,
        collective=collective,
        formats=[wire],
        device=device,
    )
    laws.check_laws(ranks)
    laws.check_something_was_applied(ranks)


@pytest.mark.parametrize("sparsifier", _core.sparsifiers())
@pytest.mark.parametrize("collective", _core.collectives())
@pytest.mark.parametrize("wire", FORMATS)
def test_laws_hold_for_every_sparsifier(sparsifier, collective, wire, device):
    ranks = run_ranks(
        5,
        lambda me: run_rough(me, 4),
        segments=[2000],
        density=0.03,
        sparsifier=sparsifier,
        collective=collective,
        formats=[wire],
        device=device,
    )
    laws.check_laws(ranks)


@pytest.mark.parametrize("size", [2, 3, 4, 7, 16])
@pytest.mark.parametrize("collective", _core.collectives())
@pytest.mark.parametrize("wire", FORMATS)
def test_laws_hold_for_values_beyond_float16(size, collective, wire, device):
    # Values are up to 300,000: sums of 16 ranks over 3 steps stay below 2^24.
    ranks = run_ranks(
        size,
        lambda me: run_rough(me, 3, factor=3001),
        segments=[700],
        density=0.1,
        collective=collective,
        formats=[wire],
        device=device,
    )
    assert max(np.abs(step.gradient).max() for rank in ranks for step in rank) > 65504
    laws.check_laws(ranks)


@pytest.mark.parametrize(
    ("collective", "wire", "segments", "size"),
    in_turn(_core.collectives(), FORMATS, [[0], [0, 0], [1], [2, 0, 1]], [1, 2, 3, 6]),
)
def test_laws_hold_for_tiny_buckets(collective, wire, segments, size, device):
    ranks = run_ranks(
        size,
        lambda me: me.run(4),
        segments=segments,
        density=0.5,
        collective=collective,
        formats=[wire],
        device=device,
    )
    laws.check_laws(ranks)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("collective", _core.collectives())
@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("density", [0.2, 0.4])
@pytest.mark.parametrize("sign", [1, -1])
def test_values_that_round_to_zero_stay_where_they_are(
    size, collective, wire, density, sign, device
):
    # Multiples of 2^-149: float16 rounds all of them to zero, bfloat16 some. Ranks select different
    # ones, so that sums become dense.
    def program(me):
        tiny = np.arange(me.numel, dtype=np.float32) * np.float32(sign * 1e-45)
        return [me.step(np.roll(tiny, 31 * me.rank)) for _ in range(3)]

    ranks = run_ranks(
        size,
        program,
        segments=[90],
        density=density,
        collective=collective,
        formats=[wire],
        device=device,
    )
    laws.check_laws(ranks)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("collective", _core.collectives())
def test_what_travels_is_rounded_once_and_the_error_stays(dtype, collective, device):
    numel = 64
    value = float(2 ** bits_of(dtype) + 1)  # lies between two numbers of the type

    def program(me):
        gradient = np.zeros(numel, np.float32)
        gradient[10 + me.rank] = value
        return me.step(gradient)

    ranks = run_ranks(
        2,
        program,
        segments=[numel],
        density=0.5,
        collective=collective,
        formats=[(True, dtype)],
        device=device,
    )
    for rank, step in enumerate(ranks):
        assert list(step.total[[10, 11]]) == [value - 1, value - 1]
        expected = np.zeros(numel)
        expected[10 + rank] = 1
        np.testing.assert_array_equal(step.residual_after, expected)


@pytest.mark.parametrize("size", [2, 3, 4, 9])
@pytest.mark.parametrize("collective", _core.collectives())
@pytest.mark.parametrize("wire", FORMATS)
def test_a_refused_step_leaves_the_residual_bit_for_bit(size, collective, wire, device):
    def program(me):
        me.run(2)
        before = me.residual.copy()
        gradient = laws.integer_gradient(me.numel, rank=me.rank, step=7)
        sent = gradient.copy()
        if me.rank == size - 1:
            sent[123], gradient[123] = np.nan, 0
        with pytest.raises(NonFiniteGradientError, match=f"gradient of rank {size - 1} in"):
            me.step(sent)
        assert me.residual.tobytes() == (before + gradient).tobytes()
        return me.run(2)

    ranks = run_ranks(
        size,
        program,
        segments=[400],
        density=0.1,
        collective=collective,
        formats=[wire],
        device=device,
    )
    laws.check_laws(ranks)


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("collective", _core.collectives())
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_finite_gradient_beyond_float32_is_not_called_nan_or_inf(
    size, collective, momentum, device
):
    def program(me):
        gradient = laws.integer_gradient(me.numel, rank=me.rank, step=0).astype(np.float64)
        sent = gradient.copy()
        if me.rank == size - 1:
            sent[123], gradient[123] = 1e300, 0
        with pytest.raises(NonFiniteGradientError) as caught:
            me.step(sent)
        why = str(caught.value)
        assert f"the gradient of rank {size - 1} in" in why
        assert "exceeds float32's range (3.4e38)" in why
        assert ("NaN" in why) == (device != CPU)  # device memory is not searched for the cause
        assert np.array_equal(me.residual, gradient)

    run_ranks(
        size,
        program,
        segments=[400],
        density=0.1,
        collective=collective,
        momentum=momentum,
        formats=[(False, "float32")],
        device=device,
    )


def test_nan_is_reported_before_a_gradient_beyond_float32(device):
    """The ranks agree on one of the two, in whichever order their blocks are merged."""

    def program(me):
        gradient = np.zeros(me.numel)
        if me.rank < 2:
            gradient[5] = (1e300, np.nan)[me.rank]
        with pytest.raises(NonFiniteGradientError) as caught:
            me.step(gradient)
        return str(caught.value)

    reasons = run_ranks(
        4,
        program,
        segments=[400],
        density=0.1,
        collective="gtopk",
        formats=[(False, "float32")],
        device=device,
    )
    assert len(set(reasons)) == 1
    assert "holds NaN or Inf" in reasons[0]
    assert device != CPU or "gradient of rank 1" in reasons[0]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("collective", _core.collectives())
@pytest.mark.parametrize("wire", FORMATS)
def test_a_sum_that_overflows_is_undone_but_for_its_cause(size, collective, wire, device):
    def program(me):
        laws.refused_for_an_overflow(me)

    run_ranks(
        size,
        program,
        segments=[40],
        density=0.5,
        collective=collective,
        formats=[wire],
        device=device,
    )


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("collective", _core.collectives())
@pytest.mark.parametrize("other", FORMATS)
@pytest.mark.parametrize("density", [0.01, 0.8])  # at 0.8, sums are dense where possible
def test_ranks_of_different_formats_are_told(size, collective, other, density, device):
    def program(me):
        with pytest.raises(
            ExchangeFailedError, match=r"the ranks disagree: .* (float(16|32)|int[48]) values"
        ):
            me.run(1)

    formats = [(False, "float32")] * (size - 1) + [other]
    run_ranks(
        size,
        program,
        segments=[3000],
        density=density,
        collective=collective,
        formats=formats,
        device=device,
    )


@pytest.mark.parametrize("collective", ["allgather", "gtopk"])  # all messages have k entries
def test_coded_blocks_take_the_bytes_that_are_promised(collective, device):
    numel, density = 200_000, 0.01
    k, size = 2000, 4

    def program(me):
        me.run(1)
        return me.stats.bytes_sent

    sent = {
        wire: run_ranks(
            size,
            program,
            segments=[numel],
            density=density,
            collective=collective,
            formats=[wire],
            device=device,
        )[0]
        for wire in [(False, "float32"), *FORMATS]
    }
    entries = sent[False, "float32"] / 8  # in all messages, plus a little for headers
    for (packed, dtype), bytes_sent in sent.items():
        bits = np.log2(numel / k) + 2 if packed else 32
        bits += {"float32": 32, "int8": 8 + 8 / 64, "int4": 4 + 8 / 64}.get(dtype, 16)
        header = 64 * sent[False, "float32"] / (8 * k)
        assert bytes_sent <= entries * bits / 8 + header


@pytest.mark.parametrize("dtype", ["float64", "ternary", ""])
def test_types_that_cannot_travel_are_refused(dtype, device):
    known = "float32, float16, bfloat16, int8, int4, binary"
    with pytest.raises(InvalidArgumentError, match=f"values must be one of {known}; got '{dtype}'"):
        run_ranks(
            1,
            lambda me: None,
            segments=[10],
            density=0.5,
            collective="gtopk",
            formats=[(False, dtype)],
            device=device,
        )
