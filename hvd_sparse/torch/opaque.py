"""Keeps the exchange out of what torch.compile compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch

_F = TypeVar("_F", bound=Callable[..., object])


def opaque(function: _F) -> _F:
    """`function`, which runs as plain Python where compiled code calls it, with all that it calls.

    Compiled code breaks its graph there. Not for decorating: it imports torch._dynamo, which takes
    seconds where no optimizer was constructed yet.
    """
    return cast(_F, torch.compiler.disable(function))  # type: ignore[no-untyped-call]
