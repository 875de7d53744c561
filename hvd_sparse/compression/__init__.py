"""Compressions, and the parts that their options are made of.

    LAGS                                           the preset as it is
    LAGS(density=0.02, local_steps=8)              with an option of its own
    LAGS(wire="int4", layers=Layers(min_numel=1))  with an option of a part

Presets: LAGS, GTopK, GaussianK, TopK, SBC, Dense, ThreeLC. Parts: Warmup, GTopKMerge, Adaptive,
Layers, Wire, Feedback, LocalSteps with Outer and AdaComm.
"""

from hvd_sparse.compression.parts import (
    AdaComm,
    Adaptive,
    Feedback,
    GTopKMerge,
    Layers,
    LocalSteps,
    Outer,
    Warmup,
    Wire,
)
from hvd_sparse.compression.presets import (
    LAGS,
    SBC,
    Compression,
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
    "Compression",
    "Dense",
    "Feedback",
    "GTopK",
    "GTopKMerge",
    "GaussianK",
    "Layers",
    "LocalSteps",
    "Outer",
    "ThreeLC",
    "TopK",
    "Warmup",
    "Wire",
    "as_compression",
    "is_sparse_compression",
]
