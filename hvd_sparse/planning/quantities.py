"""Quantities as people write them: "10Gbps", "50us"."""

from __future__ import annotations

import math
import re

from hvd_sparse.errors import InvalidArgumentError

_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BIT_RATES = ("bps", "bit/s", "b/s")
_BYTE_RATES = ("Bps", "B/s")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}


def bytes_per_second(text: str) -> float:
    """Parses a bandwidth: "10Gbps", "1 Gb/s" are in bits, "1.25GB/s" and "1GBps" in bytes.

    Raises:
        InvalidArgumentError: The text is not a bandwidth, or it is not positive.
    """
    number, unit = _split("bandwidth", text)
    for units, bits in ((_BIT_RATES, 8), (_BYTE_RATES, 1)):
        for name in units:
            prefix = unit.removesuffix(name)
            if prefix != unit and prefix in _PREFIXES:
                rate = number * _PREFIXES[prefix] / bits
                if 0 < rate < math.inf:
                    return rate
    raise InvalidArgumentError(
        f"bandwidth must be a positive rate like 10Gbps, 100Mbit/s or 1.25GB/s, got {text!r}"
    )


def seconds(text: str) -> float:
    """Parses a time: "50us", "0.1 ms", "2s".

    Raises:
        InvalidArgumentError: The text is not a time, or it is negative.
    """
    number, unit = _split("latency", text)
    if unit not in _SECONDS:
        raise InvalidArgumentError(f"latency must be a time like 50us, 0.1ms or 2s, got {text!r}")
    return number * _SECONDS[unit]


def shown_rate(rate: float) -> str:
    """Formats a bandwidth in bytes per second for people: "10 Gb/s"."""
    bits = 8 * rate
    for prefix in ("T", "G", "M", "k"):
        if bits >= 0.9995 * _PREFIXES[prefix]:
            return f"{bits / _PREFIXES[prefix]:.3g} {prefix}b/s"
    return f"{bits:.3g} b/s"


def shown_seconds(time: float) -> str:
    """Formats a time in seconds for people: "50 us"."""
    for unit in ("s", "ms", "us"):
        if time >= 0.9995 * _SECONDS[unit]:
            return f"{time / _SECONDS[unit]:.3g} {unit}"
    return f"{time / 1e-9:.3g} ns" if time else "0 s"


def _split(name: str, text: str) -> tuple[float, str]:
    """Splits a quantity into its number and its unit."""
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)\s*(\S+)\s*", text)
    if match is None or not math.isfinite(float(match[1])):
        raise InvalidArgumentError(f"{name} must be a number >= 0 with a unit, got {text!r}")
    return float(match[1]), match[2]
