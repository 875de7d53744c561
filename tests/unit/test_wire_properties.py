"""Properties of the messages of any block, and of arbitrary bytes in their index."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hvd_sparse import _core
from hvd_sparse.errors import ExchangeFailedError

HEADER = 32
FORMATS = st.sampled_from(
    [
        (packed, dtype)
        for packed in (False, True)
        for dtype in ("float32", "float16", "bfloat16", "int8", "int4", "binary")
    ][1:]
)
VALUES = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def blocks(draw):
    """Draws numel, indices and values: clusters, and entries far apart."""
    numel = draw(st.sampled_from([1, 2, 63, 64, 65, 1000, 100_000, (1 << 31) - 1]))
    gaps = draw(st.lists(st.integers(0, 3) | st.integers(0, numel // 4), max_size=80))
    indices = np.cumsum(np.array(gaps, np.int64) + 1) - 1
    indices = indices[indices < numel]
    values = draw(arrays.arrays(np.float32, indices.size, elements=VALUES))
    return numel, indices.astype(np.int32), values


def coder_of(wire, numel):
    packed, dtype = wire
    return _core.Coder(packed=packed, values=dtype, numel=numel)


def empty_block():
    return _core.Block(np.zeros(0, np.int32), np.zeros(0, np.float32))


def fit_for(wire, case):
    """Returns a case that has values of one sign if they are sent as one number."""
    numel, indices, values = case
    return numel, indices, np.abs(values) if wire[1] == "binary" else values


def message_of(wire, numel, indices, values):
    """Returns coder and block as sent; the block then holds the rounded values."""
    coder = coder_of(wire, numel)
    block = _core.Block(indices, values)
    coder.narrow(block)
    bytes_sent = coder.encode(block)
    assert len(coder.message) == bytes_sent
    return coder, block


@given(blocks(), FORMATS)
def test_a_message_reads_back_bit_for_bit_and_is_no_longer_than_a_plain_one(case, wire):
    numel, indices, values = fit_for(wire, case)
    coder, block = message_of(wire, numel, indices, values)
    assert len(coder.message) % 8 == 0
    assert len(coder.message) <= HEADER + 8 * indices.size
    received = empty_block()
    coder.decode(received)
    np.testing.assert_array_equal(received.indices(), indices)
    assert received.values().tobytes() == block.values().tobytes()


@given(blocks(), FORMATS)
def test_what_rounding_takes_is_exact_and_no_more_than_half_a_step(case, wire):
    numel, indices, values = fit_for(wire, case)
    _, block = message_of(wire, numel, indices, values)
    sent = block.values()
    error = values.astype(np.float64) - sent
    assert np.isfinite(sent).all()
    assert not np.signbit(sent[sent == 0]).any() or wire[1] == "float32"
    np.testing.assert_array_equal(error, error.astype(np.float32))  # a residual can hold it
    if wire[1] == "float16":
        small = np.abs(values) < 65504
        expected = values[small].astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(sent[small], expected)
    if wire[1] == "float32":
        assert not error.any()


@given(blocks(), FORMATS, st.data())
def test_a_damaged_message_is_refused_or_holds_a_valid_block(case, wire, data):
    numel, indices, values = fit_for(wire, case)
    coder, _ = message_of(wire, numel, indices, values)
    message = bytearray(coder.message)
    for _ in range(data.draw(st.integers(0, 4))):
        index = data.draw(
            st.integers(0, min(len(message) - 1, 47)) | st.integers(0, len(message) - 1)
        )
        message[index] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(message)) | st.just(len(message)))
    check(coder, bytes(message[:end]) + data.draw(st.binary(max_size=9)), numel)


@given(st.binary(max_size=200), FORMATS, st.sampled_from([0, 1, 100, (1 << 31) - 1]))
def test_any_bytes_are_refused_or_hold_a_valid_block(message, wire, numel):
    check(coder_of(wire, numel), message, numel)
    check(coder_of(wire, numel), b"HVSP" + message, numel)


def check(coder, message, numel):
    """Decodes the message, and checks the result."""
    assume(message)
    coder.message = message
    received = empty_block()
    try:
        coder.decode(received)
    except ExchangeFailedError:
        return
    # Bit 31 is not part of a position.
    positions = received.indices().astype(np.int64) & 0x7FFFFFFF
    assert received.count <= len(message)
    assert (np.diff(positions) > 0).all()
    assert (positions < numel).all()


@given(blocks(), blocks())
def test_a_merge_of_what_was_received_is_that_of_the_reference(one, other):
    numel = max(one[0], other[0])
    received = []
    for _, indices, values in (one, other):
        coder, _ = message_of((True, "float32"), numel, indices, values)
        received.append(empty_block())
        coder.decode(received[-1])
    merged = empty_block()
    _core.merge(*received, merged)
    with np.errstate(over="ignore"):
        expected = oracle.merge(*(oracle.Block(i.astype(np.int64), v) for _, i, v in (one, other)))
    np.testing.assert_array_equal(merged.indices(), expected.indices)
    np.testing.assert_array_equal(merged.values(), expected.values)


def test_an_empty_message_is_refused():
    coder = coder_of((True, "float32"), 10)
    coder.message = b"HVSP"
    with pytest.raises(ExchangeFailedError, match="fewer than the header"):
        coder.decode(empty_block())
