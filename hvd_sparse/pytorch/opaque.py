"""Excludes the exchange from torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch

_F = TypeVar("_F", bound=Callable[..., object])


def opaque(function: _F) -> _F:
    """Returns `function` such that it and everything that it calls are never compiled.

    Compiled code that calls it breaks its graph there. Do not use it as a decorator: it imports
    torch._dynamo, which takes seconds unless an optimizer was constructed before.
    """
    return cast(_F, torch.compiler.disable(function))  # type: ignore[no-untyped-call]
