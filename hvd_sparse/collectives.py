"""Collectives: how the selected entries of all ranks become one sum. See csrc/collectives."""

from __future__ import annotations

from hvd_sparse import _core
from hvd_sparse.errors import InvalidArgumentError

# By name, with the guarantees that each one's class states in csrc/collectives/collectives.h.
COLLECTIVES = {facts.name: facts for facts in _core.collective_facts()}


def find_collective(name: object) -> _core.CollectiveFacts:
    """Returns the collective of that name.

    Raises:
        InvalidArgumentError: There is none; the message lists all names.
    """
    if isinstance(name, str) and name in COLLECTIVES:
        return COLLECTIVES[name]
    raise InvalidArgumentError(f"collective must be one of {sorted(COLLECTIVES)}, got {name!r}")
