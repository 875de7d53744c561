"""Compressions, and the parts that their options are made of.

    LAGS                                           the preset as it is
    LAGS(density=0.02, local_steps=8)              with an option of its own
    LAGS(wire="int4", layers=Layers(min_numel=1))  with an option of a part

Presets: LAGS, GTopK, GaussianK, TopK, SBC, Dense, ThreeLC. Parts: Warmup, Collective, Adaptive,
Layers, Wire, Feedback, RobustAverage, LocalSteps with Outer and AdaComm.
"""

from hvd_sparse.compression.base import Compression
from hvd_sparse.compression.local_steps import AdaComm, LocalSteps, Outer
from hvd_sparse.compression.parts import (
    Adaptive,
    Collective,
    Feedback,
    Layers,
    RobustAverage,
    Warmup,
    Wire,
)
from hvd_sparse.compression.presets import (
    LAGS,
    SBC,
    Dense,
    GaussianK,
    GTopK,
    ThreeLC,
    TopK,
    as_compression,
    is_sparse_compression,
)

__all__ = [
    "LAGS",
    "SBC",
    "AdaComm",
    "Adaptive",
    "Collective",
    "Compression",
    "Dense",
    "Feedback",
    "GTopK",
    "GaussianK",
    "Layers",
    "LocalSteps",
    "Outer",
    "RobustAverage",
    "ThreeLC",
    "TopK",
    "Warmup",
    "Wire",
    "as_compression",
    "is_sparse_compression",
]
