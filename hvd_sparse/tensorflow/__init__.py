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

from hvd_sparse import reexport as _reexport
from hvd_sparse.compression import (
    LAGS,
    SBC,
    Dense,
    GaussianK,
    GTopK,
    ThreeLC,
    TopK,
)
from hvd_sparse.stats.step_stats import StepStats
from hvd_sparse.tensorflow import patches as _patches
from hvd_sparse.tensorflow.checkpoint import load_checkpoint, save_checkpoint
from hvd_sparse.tensorflow.elastic_state import elastic_residuals
from hvd_sparse.tensorflow.functions import sparse_allreduce
from hvd_sparse.tensorflow.inspection import stats
from hvd_sparse.tensorflow.marks import mark_step
from hvd_sparse.tensorflow.meetings import common_weights, local_steps, meet, report_loss
from hvd_sparse.tensorflow.state import prepare, residual_variables
from hvd_sparse.tensorflow.tuning import replan, tuning

_patches.install()

__all__ = [
    "LAGS",
    "SBC",
    "Dense",
    "GTopK",
    "GaussianK",
    "StepStats",
    "ThreeLC",
    "TopK",
    "common_weights",
    "elastic_residuals",
    "load_checkpoint",
    "local_steps",
    "mark_step",
    "meet",
    "prepare",
    "replan",
    "report_loss",
    "residual_variables",
    "save_checkpoint",
    "sparse_allreduce",
    "stats",
    "tuning",
]
__all__ += _reexport.public_names(_horovod, globals())

__getattr__ = _reexport.module_getattr(__name__, _horovod)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
