"""The laws that training obeys in every framework; see tests/frameworks.py for the interface.

Gradients are small integers or powers of two, so sums are exact in any order, and most laws need no
tolerance. A module of tests collects the laws of some modules by
`globals().update(laws_in(momentum))`. Its folder's conftest.py has the fixtures `framework`,
`folder` and `several_ranks`, and those of tests/rank_guard.py.
"""

from __future__ import annotations

import pkgutil
from types import ModuleType
from typing import Any

import pytest

pytest.register_assert_rewrite(
    "tests.frameworks", *(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__))
)


def laws_in(*modules: ModuleType) -> dict[str, Any]:
    """Returns the tests of some modules by name, for a module that collects them."""
    found = [(name, law) for module in modules for name, law in vars(module).items()]
    laws = {name: law for name, law in found if name.startswith("test_")}
    assert len(laws) == sum(name.startswith("test_") for name, _ in found), "laws share a name"
    return laws
