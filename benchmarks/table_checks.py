"""Rules by which a row of the papers' tables counts: three, each with the reason if it does not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MESSAGE_TOLERANCE = 0.15  # of bytes / rate
REPETITION_TOLERANCE = 0.05
MOST_CPU = 0.70  # share of the machine's cores


@dataclass(frozen=True)
class Message:
    """Measurement of messages of one size.

    Attributes:
        bytes: Bytes of each message.
        seconds: Median time until the last byte had arrived.
    """

    bytes: int
    seconds: float


def latency(messages: Sequence[Message], rate: float, frame: int = 0) -> float:
    """Returns the seconds that messages take in addition to bytes / rate, by least squares.

    The residuals count as shares of bytes / rate, so that small messages, in which latency shows,
    dominate. Negative if the frame that a shaped link passes at once saves more time than the
    machine's own overhead costs.

    Args:
        messages: At least one message.
        rate: Bits per second.
        frame: Bytes that a link passes at once after a pause; the result is at least minus their
            time.
    """
    ideal = [8 * message.bytes / rate for message in messages]
    weighted = sum(
        (message.seconds - wire) / wire**2 for message, wire in zip(messages, ideal, strict=True)
    )
    return max(-8 * frame / rate, weighted / sum(1 / wire**2 for wire in ideal))


def message_problems(messages: Sequence[Message], rate: float, frame: int = 0) -> list[str]:
    """Returns the sizes whose messages are not within 15 % of bytes / rate, latency deducted."""
    alpha = latency(messages, rate, frame)
    problems = []
    for message in messages:
        wire = 8 * message.bytes / rate
        off = (message.seconds - alpha) / wire - 1
        if not abs(off) <= MESSAGE_TOLERANCE:
            problems.append(f"{message.bytes} bytes take {off:+.0%} of bytes / rate")
    return problems


def repetition_problems(one: Mapping[str, float], other: Mapping[str, float]) -> list[str]:
    """Returns the methods whose steps differ by more than 5 % between two dilations.

    Args:
        one: Seconds per step by method, divided by the dilation.
        other: Seconds of the same methods at another dilation.
    """
    if set(one) != set(other):
        raise ValueError(f"methods differ: {sorted(one)} and {sorted(other)}")
    problems = []
    for method, seconds in one.items():
        off = other[method] / seconds - 1
        if not abs(off) <= REPETITION_TOLERANCE:
            problems.append(f"{method} takes {off:+.0%} at the other dilation")
    return problems


def cpu_problems(shares: Mapping[str, float]) -> list[str]:
    """Returns the methods during which the cores were busy for 70 % of the time or more."""
    busy = [
        f"{share:.0%} during {method}"
        for method, share in shares.items()
        if math.isnan(share) or share >= MOST_CPU
    ]
    return [f"the machine is busy: {', '.join(busy)}"] if busy else []
