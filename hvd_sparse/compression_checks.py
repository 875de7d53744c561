"""Checks of a compression's options: their limits, and which of them go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_sparse.collectives import SHARD_SUM
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.sparsifiers import Sparsifier

if TYPE_CHECKING:
    from hvd_sparse.compression import Compression

# Types of values that the dense sum alone can send.
_VALUES_OF_DENSE_SUMS = ("ternary",)

# The parts that binary values take: one number is sent for all entries, which are of one layer and
# of one sign, and no sum is sent.
_PARTS_OF_BINARY = (("sparsifier", "one_sign"), ("collective", "allgather"), ("adaptive", False))


def check_parts(compression: Compression) -> None:
    """Raises InvalidArgumentError unless the options of a compression go together."""
    if compression.collective == SHARD_SUM:
        _check_dense_sum(compression)
    elif type(compression).collective == SHARD_SUM:
        raise InvalidArgumentError(
            f"collective of {type(compression).__name__} must be {SHARD_SUM!r}, "
            f"got {compression.collective!r}"
        )
    elif compression.values in _VALUES_OF_DENSE_SUMS:
        raise InvalidArgumentError(
            f"values may be {compression.values!r} with collective {SHARD_SUM!r} alone, "
            f"got collective {compression.collective!r}"
        )
    if compression.values == "binary":
        _check_binary(compression)


def _check_dense_sum(compression: Compression) -> None:
    for name, wanted in (("density", 1), ("warmup", None), ("adaptive", False)):
        value = getattr(compression, name)
        if value != wanted:
            raise InvalidArgumentError(
                f"{name} must be {wanted} with collective {SHARD_SUM!r}, which sends every entry, "
                f"got {value!r}"
            )


def _check_binary(compression: Compression) -> None:
    parts = (*_PARTS_OF_BINARY, *([("bucket_numel", 1)] if compression.layer_wise else []))
    for name, wanted in parts:
        value = getattr(compression, name)
        found = value.name if isinstance(value, Sparsifier) else value
        if found != wanted:
            raise InvalidArgumentError(
                f"{name} must be {wanted!r} with values 'binary', which are one number for entries "
                f"of one layer and one sign, got {found!r}"
            )


def checked_slack(slack: object) -> float:
    """`slack` if it is a finite number of at least 1; raises InvalidArgumentError otherwise."""
    if isinstance(slack, int | float) and not isinstance(slack, bool) and 1 <= slack < float("inf"):
        return float(slack)
    raise InvalidArgumentError(f"slack must be a finite number >= 1, got {slack!r}")


def checked_number(
    name: str,
    value: object,
    *,
    low: float = 0,
    below: float = float("inf"),
    above: bool = False,
) -> float:
    """`value` as a float; raises InvalidArgumentError unless it is a number within the limits.

    Args:
        name: What the message calls it.
        value: The value.
        low: Its lower limit, which it may be.
        below: Its upper limit, which it may not be.
        above: True if it may not be the lower limit either.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and low <= value < below and (value > low or not above):  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    limits = f"{'(' if above else '['}{low}, {'infinity' if below == float('inf') else below})"
    raise InvalidArgumentError(f"{name} must be a number in {limits}, got {value!r}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises InvalidArgumentError unless `value` is one of the choices."""
    if value not in choices:
        raise InvalidArgumentError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
