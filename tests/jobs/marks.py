"""What takes long is left to `make longtest`."""

from __future__ import annotations

from typing import Any

import pytest


def long(value: Any) -> Any:
    """A parameter with which a test takes long, or shows what others show."""
    return pytest.param(value, marks=pytest.mark.long)
