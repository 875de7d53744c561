"""Collectives: how the gradients of all ranks become one sum. See csrc/collectives."""

from __future__ import annotations

from hvd_sparse import _core
from hvd_sparse.errors import InvalidArgumentError

# The core's own dense sum: every entry is sent, and added up by the owner of its shard.
SHARD_SUM = "shard_sum"

_FACTS = {facts.name: facts for facts in _core.collective_facts()}

# Those that take selected entries, by name, with the guarantees that each one's class states in
# csrc/collectives/collectives.h.
COLLECTIVES = {name: facts for name, facts in _FACTS.items() if facts.is_sparse}

# All others send every entry.
DENSE_COLLECTIVES = tuple(name for name in _FACTS if name not in COLLECTIVES)

# Those by which owners average all entries, in place of the sum; see
# csrc/collectives/aggregation_rule.h.
RULES = tuple(name for name in DENSE_COLLECTIVES if name != SHARD_SUM)


def find_collective(name: object) -> _core.CollectiveFacts:
    """Returns the collective of that name.

    Raises:
        InvalidArgumentError: There is none; the message lists all names.
    """
    if isinstance(name, str) and name in _FACTS:
        return _FACTS[name]
    raise InvalidArgumentError(f"collective must be one of {sorted(_FACTS)}, got {name!r}")
