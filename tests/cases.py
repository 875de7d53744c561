"""Which cases to run where all of them would take too long."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def in_turn(*choices: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Cases that hold every combination of all choices but any one: the last takes turns.

    For pytest.mark.parametrize. Each choice must have as many values as the last.
    """
    *others, last = choices
    assert all(len(one) >= len(last) for one in others)
    return [
        (*(value for _, value in case), last[sum(place for place, _ in case) % len(last)])
        for case in itertools.product(*(list(enumerate(one)) for one in others))
    ]
