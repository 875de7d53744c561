"""Subsets of test cases, where running all combinations would take too long."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def in_turn(*choices: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Returns cases in which all choices but any one are fully combined.

    The values of the last choice take turns. For pytest.mark.parametrize. Each choice must have at
    least as many values as the last.
    """
    *others, last = choices
    assert all(len(one) >= len(last) for one in others)
    return [
        (*(value for _, value in case), last[sum(index for index, _ in case) % len(last)])
        for case in itertools.product(*(list(enumerate(one)) for one in others))
    ]
