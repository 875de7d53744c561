"""Sparse gradient exchange for DDP and Horovod: LAGS-SGD, gTop-k and GaussianK.

The interface for PyTorch's DistributedDataParallel is hvd_sparse.ddp; under Horovod, PyTorch's is
hvd_sparse.torch and TensorFlow's is hvd_sparse.tensorflow. This package has the version, the
errors of all interfaces, and sparse_allreduce for arrays of NumPy and CuPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hvd_sparse.errors import (
    CheckpointMismatchError,
    ExchangeFailedError,
    ExchangeTimeoutError,
    GradientInFlightError,
    HvdSparseError,
    InvalidArgumentError,
    NonFiniteGradientError,
    OutOfMemoryError,
    PeerLeftError,
    PeerLostError,
    RanksDisagreeError,
    UnavailableError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from hvd_sparse.arrays.functions import sparse_allreduce

__all__ = [
    "CheckpointMismatchError",
    "ExchangeFailedError",
    "ExchangeTimeoutError",
    "GradientInFlightError",
    "HvdSparseError",
    "InvalidArgumentError",
    "NonFiniteGradientError",
    "OutOfMemoryError",
    "PeerLeftError",
    "PeerLostError",
    "RanksDisagreeError",
    "UnavailableError",
    "UnsupportedError",
    "sparse_allreduce",
]

__version__ = "0.3.0.dev0"


def __getattr__(name: str) -> Any:
    if name == "sparse_allreduce":  # the core is loaded only when it is needed
        from hvd_sparse.arrays.functions import sparse_allreduce

        return sparse_allreduce
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
