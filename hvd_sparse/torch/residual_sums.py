"""Sums residuals, saved by `state.save`, over ranks by Horovod's allreduce."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from numpy.typing import NDArray


def residuals_of(saved: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Returns the residuals in what `state.save` returned: by layer, flat."""
    return {name: part.cpu().numpy() for name, part in saved["residuals"].items()}


def summing_over(process_set: Any) -> Callable[[NDArray[Any], str], NDArray[Any]]:
    """Returns the allreduce by which a SavedSum adds up its parts over a process set."""

    def allreduce(part: NDArray[Any], name: str) -> NDArray[Any]:
        summed = hvd.allreduce(
            torch.from_numpy(part), op=hvd.Sum, name=name, process_set=process_set
        )
        return np.asarray(summed.numpy())

    return allreduce
