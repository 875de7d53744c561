"""Combinations of a law that repeat in TensorFlow what it shows in PyTorch, over the same engine.

All of them run in PyTorch. Here, each runs in one mode, eagerly or in a graph, and of those of the
laws in HALVED only every second one of each compression runs. The others are long.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

MODES = ("graph", "eager")
HALVED = (
    "test_nothing_is_lost_in_any_combination",
    "test_narrow_gradients_go_on_bit_for_bit_from_a_checkpoint",
)
# Compressions that differ from another one in what the core does, not in what a checkpoint holds.
RESUMED = "test_a_resumed_run_goes_on_bit_for_bit"
ALIKE = (
    "gtopk",
    "gtopk with momentum",
    "lags by default",
    "dense, float16",
    "dense, int8",
    "dense, int4",
)

_seen: Counter[tuple[Any, ...]] = Counter()


def take_turns(item: pytest.Item) -> None:
    """Marks a test that was collected as long if it is not its turn."""
    function, callspec = getattr(item, "function", None), getattr(item, "callspec", None)
    if callspec is None or not function.__module__.startswith("tests.framework_laws."):
        return
    law, chosen = function.__name__, callspec.params
    mode = chosen.get("mode")
    if law == RESUMED and chosen["name"] in ALIKE:
        item.add_marker(pytest.mark.long)
    if mode is None and law not in HALVED:
        return
    among = ("mode", "device") if mode else ("name", "ranks")
    key = (item.path, law, *map(chosen.get, among))
    # The parity of a number's binary digits: no choice of another parameter always meets one mode.
    turn = bin(_seen[key]).count("1") % len(MODES)
    _seen[key] += 1
    if turn != (MODES.index(mode) if mode else 0):
        item.add_marker(pytest.mark.long)
