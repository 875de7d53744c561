"""Checks of single options: each returns the option in the form that is kept."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

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


def checked_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """Returns `value`; raises InvalidArgumentError unless it is one of the choices."""
    if any(type(value) is type(one) and value == one for one in choices):
        return value
    allowed = ", ".join(map(str, choices))
    raise InvalidArgumentError(f"{name} must be one of {allowed}, got {value!r}")


def checked_kind(name: str, value: Any, kind: type) -> Any:
    """Returns `value`; raises InvalidArgumentError unless it is an instance of `kind`."""
    if isinstance(value, kind):
        return value
    raise InvalidArgumentError(f"{name} must be a {kind.__name__}, got {value!r}")
