"""Sparse gradient exchange for Horovod: LAGS-SGD, gTop-k and GaussianK.

PyTorch's side is hvd_sparse.torch; here are the version and the errors that all sides raise.
"""

from __future__ import annotations

from hvd_sparse.errors import (
    CheckpointMismatchError,
    ExchangeFailedError,
    ExchangeTimeoutError,
    GradientInFlightError,
    HvdSparseError,
    InvalidArgumentError,
    NonFiniteGradientError,
    PeerLostError,
    UnavailableError,
    UnsupportedError,
)

__all__ = [
    "CheckpointMismatchError",
    "ExchangeFailedError",
    "ExchangeTimeoutError",
    "GradientInFlightError",
    "HvdSparseError",
    "InvalidArgumentError",
    "NonFiniteGradientError",
    "PeerLostError",
    "UnavailableError",
    "UnsupportedError",
]

__version__ = "0.1.0"
