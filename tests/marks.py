"""A mark for long tests, which only `make longtest` runs."""

from __future__ import annotations

from typing import Any

import pytest


def long(value: Any) -> Any:
    """Returns a parameter whose test is long, or repeats what other tests show."""
    return pytest.param(value, marks=pytest.mark.long)
