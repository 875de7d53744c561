"""Sparse gradient exchange for TensorFlow under Horovod.

Importing this module adds sparse compressions to `horovod.tensorflow`:

    import horovod.tensorflow as hvd
    from hvd_sparse.tensorflow import LAGS

    tape = hvd.DistributedGradientTape(tape, compression=LAGS)
    optimizer = hvd.DistributedOptimizer(optimizer, compression=LAGS)

`import hvd_sparse.tensorflow as hvd` works as well: this module re-exports all of
horovod.tensorflow.
"""

import horovod.tensorflow as _horovod

from hvd_sparse.compression import LAGS, SBC, Dense, GaussianK, GTopK, ThreeLC, TopK
from hvd_sparse.ranks import horovod_names as _reexport
from hvd_sparse.tensorflow import patches as _patches
from hvd_sparse.tensorflow.functions import sparse_allreduce
from hvd_sparse.tensorflow.preparing import prepare
from hvd_sparse.tensorflow.user_exchange import Exchange

_patches.install()

__all__ = [
    "LAGS",
    "SBC",
    "Dense",
    "Exchange",
    "GTopK",
    "GaussianK",
    "ThreeLC",
    "TopK",
    "prepare",
    "sparse_allreduce",
]
__all__ += _reexport.public_names(_horovod, globals())

__getattr__ = _reexport.module_getattr(__name__, _horovod)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
