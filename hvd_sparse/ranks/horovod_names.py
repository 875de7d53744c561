"""What the interfaces for users of Horovod share: its names, and wrappers around some of them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_MARK = "_hvd_sparse_stock"


def replace(
    name: str, home: Any, around: Callable[..., Any], *, modules: Sequence[str] = ()
) -> None:
    """Replaces `home.name`, once, however often this is called.

    Args:
        name: Name of a function, or of a method of a class.
        home: The module or class that holds it.
        around: The replacement; its first argument is the original function.
        modules: Other modules that, if loaded, may hold the function under the same name.
    """
    stock = getattr(home, name)
    if hasattr(stock, _MARK):
        return

    @functools.wraps(stock)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return around(stock, *args, **kwargs)

    setattr(replacement, _MARK, stock)
    for holder in (home, *filter(None, map(sys.modules.get, modules))):
        if getattr(holder, name, None) is stock:
            setattr(holder, name, replacement)


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
