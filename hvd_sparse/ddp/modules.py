"""The modules around and in a DistributedDataParallel."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel


def uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """Returns the module of which torch.compile has made a model; any other model itself."""
    inner: torch.nn.Module = getattr(model, "_orig_mod", model)
    return inner


def module_of(model: torch.nn.Module) -> torch.nn.Module:
    """Returns the module in a DistributedDataParallel; any other module itself."""
    inner = uncompiled(model)
    return inner.module if isinstance(inner, DistributedDataParallel) else inner
