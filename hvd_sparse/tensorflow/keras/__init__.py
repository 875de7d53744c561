"""Sparse gradient exchange for Keras under Horovod, with TensorFlow behind Keras.

    import hvd_sparse.tensorflow.keras as hvd

is horovod.tensorflow.keras, with sparse compressions; and with Keras 3, where Horovod's own
optimizer exchanges nothing, with one that does.
"""

import horovod.tensorflow.keras as _horovod

from hvd_sparse import handing_on as _handing_on
from hvd_sparse.tensorflow import (
    LAGS,
    GaussianK,
    GTopK,
    TopK,
    Warmup,
    elastic_residuals,
    load_checkpoint,
    prepare,
    replan,
    save_checkpoint,
    stats,
    tuning,
)
from hvd_sparse.tensorflow.keras.watching import WatchCallback

__all__ = [
    "LAGS",
    "GTopK",
    "GaussianK",
    "TopK",
    "Warmup",
    "WatchCallback",
    "elastic_residuals",
    "load_checkpoint",
    "prepare",
    "replan",
    "save_checkpoint",
    "stats",
    "tuning",
]
__all__ += _handing_on.names_of(_horovod, globals())

__getattr__ = _handing_on.getter_of(__name__, _horovod)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
