"""Replaces functions of Horovod's modules by wrappers, which can call the original ones."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
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
