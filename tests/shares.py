"""A plugin for pytest, `-p tests.shares`: `--share=2/3` runs every third test, from the second on.

So stages that run the same tests on different numbers of ranks can share them out.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser):
    """Adds the option for the share of tests to run."""
    parser.addoption("--share", type=_share, default=(1, 1), help="I/N: the Ith of N shares")


@pytest.hookimpl(trylast=True)  # after all other options have deselected tests
def pytest_collection_modifyitems(config, items):
    """Keeps the tests of the share."""
    number, shares = config.getoption("--share")
    left_out = [item for index, item in enumerate(items) if index % shares != number - 1]
    config.hook.pytest_deselected(items=left_out)
    items[:] = items[number - 1 :: shares]


def _share(text: str) -> tuple[int, int]:
    number, shares = map(int, text.split("/"))
    if not 1 <= number <= shares:
        raise ValueError(text)
    return number, shares
