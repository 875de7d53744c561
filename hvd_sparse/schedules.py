"""Schedules: densities that change over the first steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from hvd_sparse.errors import InvalidArgumentError


def checked_density(name: str, density: object) -> float:
    """Returns `density` as a float.

    Raises:
        InvalidArgumentError: It is not a number in (0, 1]; the message calls it `name`.
    """
    if isinstance(density, bool) or not isinstance(density, Real):
        raise InvalidArgumentError(
            f"{name} must be a number in (0, 1], got {density!r} ({type(density).__name__})"
        )
    number = float(density)
    if math.isnan(number) or not 0 < number <= 1:
        raise InvalidArgumentError(f"{name} must lie in (0, 1], got {number}")
    return number


def checked_count(name: str, count: object, *, low: int, high: int) -> int:
    """Returns `count` as an int.

    Raises:
        InvalidArgumentError: It is not an integer in [low, high]; the message calls it `name`.
    """
    if isinstance(count, bool) or not isinstance(count, Integral):
        raise InvalidArgumentError(
            f"{name} must be an integer, got {count!r} ({type(count).__name__})"
        )
    if not low <= int(count) <= high:
        raise InvalidArgumentError(f"{name} must lie in [{low}, {high}], got {count}")
    return int(count)


def checked_number(
    name: str,
    value: object,
    *,
    low: float = 0,
    below: float = float("inf"),
    above: bool = False,
) -> float:
    """Returns `value` as a float.

    Args:
        name: Its name in the message.
        value: A number in [low, below); or in (low, below), if `above`.
        low: Lower limit.
        below: Upper limit.
        above: True if the lower limit is not allowed.

    Raises:
        InvalidArgumentError: It is no such number.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and low <= value < below and (value > low or not above):  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    limits = f"{'(' if above else '['}{low}, {'infinity' if below == float('inf') else below})"
    raise InvalidArgumentError(f"{name} must be a number in {limits}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """Larger densities for the first steps, when gradients change fastest.

    Args:
        steps: Number of steps for which each density holds; an epoch, in the paper.
        densities: The densities in their order, each in (0, 1]; the compression's own density is
            their lower limit.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.

    Reference:
        Lin et al., Deep Gradient Compression, https://arxiv.org/abs/1712.01887, section 3.3.
    """

    steps: int
    densities: Sequence[float] = (0.25, 0.0625, 0.015625, 0.004)

    def __post_init__(self) -> None:
        steps = checked_count("Warmup steps", self.steps, low=1, high=2**62)
        if isinstance(self.densities, str) or not isinstance(self.densities, Sequence):
            raise InvalidArgumentError(
                f"Warmup densities must be a sequence of numbers, got {self.densities!r}"
            )
        densities = tuple(checked_density("a Warmup density", value) for value in self.densities)
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "densities", densities)

    def density_at(self, step: int, final: float) -> float:
        """Returns the density of a step, counted from 0; `final` once the warm-up is over."""
        stage = step // self.steps
        return max(self.densities[stage], final) if stage < len(self.densities) else final

    def largest(self, final: float) -> float:
        """Returns the largest density of any step."""
        return max((*self.densities, final))
