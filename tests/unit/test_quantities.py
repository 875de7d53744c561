"""Quantities: the accepted notations, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.planning import quantities


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10Gbps", 1.25e9),
        ("1 Gb/s", 1.25e8),
        ("100Mbit/s", 1.25e7),
        ("2.5Gbps", 3.125e8),
        ("1e3 kbps", 1.25e5),
        ("800bps", 100.0),
        ("1.25GB/s", 1.25e9),
        ("1GBps", 1e9),
        (" .5 MB/s ", 5e5),
    ],
)
def test_bandwidths_are_bits_or_bytes_as_written(text, rate):
    assert quantities.bytes_per_second(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    "text",
    ["", "10", "fast", "10G", "0Gbps", "-1Gbps", "10gbps", "10Gbps each"]
    + ["1e999Gbps", "1e300Tbps", "1e-323bps"],
)
def test_what_is_no_bandwidth_is_refused(text):
    with pytest.raises(InvalidArgumentError, match=r"^bandwidth must be"):
        quantities.bytes_per_second(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50us", 5e-5), ("0.1 ms", 1e-4), ("2s", 2.0), ("5 µs", 5e-6), ("7ns", 7e-9), ("0us", 0.0)],
)
def test_times_take_any_usual_unit(text, seconds):
    assert quantities.seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "50", "us", "50 min", "-1us", "nan us"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(InvalidArgumentError, match=r"^latency must be"):
        quantities.seconds(text)


@pytest.mark.parametrize("rate", [100.0, 1.25e5, 1.25e8, 1.25e9, 3.125e10])
def test_shown_rates_read_back(rate):
    assert quantities.bytes_per_second(quantities.shown_rate(rate)) == pytest.approx(rate)


@pytest.mark.parametrize("time", [0.0, 5e-9, 5e-5, 0.05, 2.0, 0.00099999])
def test_shown_times_read_back(time):
    assert quantities.seconds(quantities.shown_seconds(time)) == pytest.approx(time, rel=1e-3)


@given(st.floats(1e-6, 1e15))
def test_any_rate_and_any_time_reads_back_as_shown(number):
    assert quantities.bytes_per_second(quantities.shown_rate(number)) == pytest.approx(
        number, rel=6e-3
    )
    assert quantities.seconds(quantities.shown_seconds(number)) == pytest.approx(number, rel=6e-3)


PIECES = [*"10.e-+ Gksx", "9" * 400, "bps", "B/s", "us", "\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=6).map("".join) | st.text(max_size=12))
def test_any_text_is_a_quantity_or_refused(text):
    for read, name in (
        (quantities.bytes_per_second, "bandwidth"),
        (quantities.seconds, "latency"),
    ):
        try:
            number = read(text)
        except InvalidArgumentError:
            with pytest.raises(InvalidArgumentError, match=f"^{name} must be"):
                read(text)
            continue
        assert math.isfinite(number)
        assert number > 0 or (number == 0 and name == "latency")
