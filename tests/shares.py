"""A plugin for pytest, `-p tests.shares`: runs a part of the tests, in which all kinds occur.

- `--every=4`: about every fourth case of a test with several parameters, and each value of each
  parameter at least once. A case is left out only if others have its values.
- `--laws=2/3`: the cases of each law of tests/framework_laws are dealt out to three frameworks, and
  the second one's run, but at least one.
- `--share=1/2`: tests that any number of ranks can run are dealt out to two stages, and the first
  one's run, but at least one of each file. Tests that not every number can run are in both.

A case that is skipped here stands for no other.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest

LAWS = "tests.framework_laws."


def pytest_addoption(parser):
    """Adds the options for the part of the tests to run."""
    parser.addoption("--every", type=int, default=1, help="N: about every Nth case of each test")
    parser.addoption("--laws", type=_share, default=(1, 1), help="I/N: the Ith of N frameworks'")
    parser.addoption("--share", type=_share, default=(1, 1), help="I/N: the Ith of N shares")


@pytest.hookimpl(trylast=True)  # after all other options have deselected tests
def pytest_collection_modifyitems(config, items):
    """Keeps the tests of the part, in their order."""
    every, laws, share = map(config.getoption, ("every", "laws", "share"))
    chosen = {item for item in items if is_skipped(item)}
    for cases in grouped(items, lambda item: (item.path, getattr(item, "function", item))):
        is_law = getattr(cases[0].function, "__module__", "").startswith(LAWS)
        own = (dealt(cases, *laws) or cases[:1]) if is_law else cases
        chosen |= set(some_of(own, every))
    if share != (1, 1):
        anywhere = [one for one in items if one in chosen and not any(one.iter_markers("skipif"))]
        mine = {item for item in anywhere if is_of(item, *share)}
        for tests in grouped(anywhere, lambda item: item.path):
            mine |= set() if mine & set(tests) else {tests[0]}
        chosen -= set(anywhere) - mine
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def is_of(item: pytest.Item, number: int, shares: int) -> bool:
    """Returns true if a test belongs to a share, wherever the others run."""
    name = item.nodeid.partition("[")[0]
    return zlib.crc32(name.encode()) % shares == number - 1


def is_skipped(item: pytest.Item) -> bool:
    """Returns true if a mark says that a test is skipped."""
    return any(mark.args[0] for mark in item.iter_markers("skipif"))


def grouped(items: list[pytest.Item], key: Callable[[pytest.Item], object]) -> list[Any]:
    """Returns lists of those items that have the same key and are not skipped."""
    groups: dict[object, list[pytest.Item]] = {}
    for item in items:
        if not is_skipped(item):
            groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def dealt(items: list[pytest.Item], number: int, shares: int) -> list[pytest.Item]:
    """Returns the items of a share.

    An item's turn is the sum of its index's digits to the base `shares`. So as many in a row have
    different turns, and no share has those items alone that have one value of some parameter.
    """

    def turn(index: int) -> int:
        total = 0
        while index:
            index, digit = divmod(index, shares)
            total += digit
        return total % shares

    if shares == 1:
        return items
    return [item for index, item in enumerate(items) if turn(index) == number - 1]


def some_of(cases: list[pytest.Item], every: int) -> list[pytest.Item]:
    """Returns a share of a test's cases, and others until all values of its parameters occur."""
    kept = list(dealt(cases, 1, every))
    seen = {value for case in kept for value in values_of(case)}
    for case in cases:
        if not values_of(case) <= seen:
            kept.append(case)
            seen |= values_of(case)
    return kept


def values_of(case: pytest.Item) -> set[tuple[str, str]]:
    """Returns the names and values of a case's parameters."""
    callspec = getattr(case, "callspec", None)
    return {(name, repr(value)) for name, value in callspec.params.items()} if callspec else set()


def _share(text: str) -> tuple[int, int]:
    number, shares = map(int, text.split("/"))
    if not 1 <= number <= shares:
        raise ValueError(text)
    return number, shares
