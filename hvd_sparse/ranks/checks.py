"""HVD_SPARSE_CHECK makes the ranks compare what they are about to do, before each bucket."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hvd_sparse.errors import InvalidArgumentError

VARIABLE = "HVD_SPARSE_CHECK"


def from_environment() -> bool:
    """Returns true if the user asked for checks.

    Raises:
        InvalidArgumentError: HVD_SPARSE_CHECK is neither 0 nor 1.
    """
    value = os.environ.get(VARIABLE, "") or "0"
    if value not in ("0", "1"):
        raise InvalidArgumentError(f"{VARIABLE} must be 0 or 1, got {value!r}")
    return value == "1"


def require_one(checks: Sequence[bool]) -> None:
    """Ensures that all ranks check, or none.

    Args:
        checks: True for each rank that checks, in the order of the ranks.

    Raises:
        InvalidArgumentError: The ranks differ.
    """
    for rank, theirs in enumerate(checks):
        if theirs != checks[0]:
            raise InvalidArgumentError(
                f"{VARIABLE} must be the same on all ranks: it is {theirs:d} on rank {rank} and "
                f"{checks[0]:d} on rank 0"
            )
