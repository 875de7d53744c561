"""Lets the ranks of a job start in half the time: torch's compiler waits until it is asked for.

Python imports this module by itself, before the program, where this folder is on PYTHONPATH. The
first step of an optimizer imports all of torch._dynamo, two seconds of a core in every rank, only
to ask it for `disable`, which marks functions that torch.compile has to leave alone. Whatever else
is asked of it is answered by the real one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


class Deferred(ModuleType):
    """Stands for torch._dynamo."""

    @staticmethod
    def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """Nothing is compiled, so nothing has to be left alone."""
        return function

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """There is no graph."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # which imports of its parts look up
            raise AttributeError(name)
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)


sys.modules[NAME] = Deferred(NAME)
