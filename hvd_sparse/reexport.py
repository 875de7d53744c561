"""Lets a module re-export everything from Horovod's module of the same framework."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def public_names(horovod: ModuleType, own: dict[str, Any]) -> list[str]:
    """Returns the public names of Horovod's module, without the names in `own`."""
    return [name for name in dir(horovod) if not name.startswith("_") and name not in own]


def module_getattr(module: str, horovod: ModuleType) -> Callable[[str], Any]:
    """Returns a module's `__getattr__`, which looks up missing names in Horovod's module."""

    def get(name: str) -> Any:
        try:
            return getattr(horovod, name)
        except AttributeError:
            raise AttributeError(f"module {module!r} has no attribute {name!r}") from None

    return get
