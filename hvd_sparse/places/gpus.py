"""Checks that this build, on this machine, can exchange gradients on a GPU."""

from __future__ import annotations

import functools

from hvd_sparse import _core
from hvd_sparse.errors import UnavailableError, UnsupportedError


def require_gpus(found: str) -> None:
    """Raises UnsupportedError, with the reason, if gradients on a GPU cannot be exchanged.

    Args:
        found: The beginning of the error, such as "array is on a GPU".
    """
    problem = problem_of_gpus()
    if problem is not None:
        raise UnsupportedError(f"{found}, and this build {problem}")


@functools.cache
def problem_of_gpus() -> str | None:
    """Returns why this build cannot use GPUs, or what it does instead; None if it can use them."""
    if not _core.with_cuda:
        return "exchanges on the CPU only: build hvd_sparse with HVD_SPARSE_WITH_CUDA=1"
    try:
        _core.cuda_devices()
    except UnavailableError as error:
        return f"cannot use it: {error}"
    return None
