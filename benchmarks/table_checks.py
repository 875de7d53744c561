"""When a row of the papers' tables counts: three rules, each with the reason why not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MESSAGE_TOLERANCE = 0.15  # of bytes / rate
REPETITION_TOLERANCE = 0.05
MOST_CPU = 0.70  # share of the machine's cores


@dataclass(frozen=True)
class Message:
    """What was seen of messages of one size.

    Attributes:
        bytes: Of each.
        seconds: Until the last byte had arrived; the median.
    """

    bytes: int
    seconds: float


def latency(messages: Sequence[Message], rate: float, frame: int = 0) -> float:
    """Seconds that every message takes beyond bytes / rate, in the sense of least squares.

    The residuals count as shares of bytes / rate, so that small messages, in which latency shows,
    decide. Below zero where the frame that a shaped link lets pass at once saves more than the way
    through the machine costs.

    Args:
        messages: At least one.
        rate: Bits per second.
        frame: Bytes that a link lets pass at once after a pause: no latency is below minus their
            time.
    """
    ideal = [8 * message.bytes / rate for message in messages]
    weighted = sum(
        (message.seconds - wire) / wire**2 for message, wire in zip(messages, ideal, strict=True)
    )
    return max(-8 * frame / rate, weighted / sum(1 / wire**2 for wire in ideal))


def message_problems(messages: Sequence[Message], rate: float, frame: int = 0) -> list[str]:
    """Sizes of which a message does not take latency + bytes / rate, within 15 % of the latter."""
    alpha = latency(messages, rate, frame)
    problems = []
    for message in messages:
        wire = 8 * message.bytes / rate
        off = (message.seconds - alpha) / wire - 1
        if not abs(off) <= MESSAGE_TOLERANCE:
            problems.append(f"{message.bytes} bytes take {off:+.0%} of bytes / rate")
    return problems


def repetition_problems(one: Mapping[str, float], other: Mapping[str, float]) -> list[str]:
    """Methods whose steps differ by more than 5 % between two dilations.

    Args:
        one: Seconds per step by method, divided by the dilation.
        other: The same methods, at another dilation.
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
    """Methods during which the machine's cores were busy for 70 % of the time, or more."""
    busy = [
        f"{share:.0%} during {method}"
        for method, share in shares.items()
        if math.isnan(share) or share >= MOST_CPU
    ]
    return [f"the machine is busy: {', '.join(busy)}"] if busy else []
