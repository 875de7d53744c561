"""Sparse gradient exchange under Horovod for Keras with the TensorFlow backend.

    import hvd_sparse.tensorflow.keras as hvd

gives horovod.tensorflow.keras with sparse compressions, and with an optimizer that also exchanges
with Keras 3, where Horovod's own exchanges nothing.
"""

import horovod.tensorflow.keras as _horovod

from hvd_sparse.ranks import horovod_names as _reexport
from hvd_sparse.tensorflow import (
    LAGS,
    SBC,
    Dense,
    Exchange,
    GaussianK,
    GTopK,
    ThreeLC,
    TopK,
    prepare,
)
from hvd_sparse.tensorflow.keras.watching import WatchCallback

__all__ = [
    "LAGS",
    "SBC",
    "Dense",
    "Exchange",
    "GTopK",
    "GaussianK",
    "ThreeLC",
    "TopK",
    "WatchCallback",
    "prepare",
]
__all__ += _reexport.public_names(_horovod, globals())

__getattr__ = _reexport.module_getattr(__name__, _horovod)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
