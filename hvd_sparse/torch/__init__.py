"""Sparse gradient exchange for PyTorch under Horovod.

Importing this module teaches `horovod.torch.DistributedOptimizer` sparse compressions:

    import horovod.torch as hvd
    from hvd_sparse.torch import LAGS

    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=LAGS(density=0.01)
    )

`import hvd_sparse.torch as hvd` works as well: everything in horovod.torch is here, too.
"""

import horovod.torch as _horovod

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
from hvd_sparse.pytorch.meetings import common_weights, local_steps, meet, report_loss
from hvd_sparse.pytorch.optimizer import mark_step, stats
from hvd_sparse.pytorch.tuning import replan, tuning
from hvd_sparse.pytorch.watching import summary, watch
from hvd_sparse.stats.step_stats import Stats, StepStats, TotalStats
from hvd_sparse.torch import patches as _patches
from hvd_sparse.torch.checkpoint import load_checkpoint, save_checkpoint
from hvd_sparse.torch.elastic_state import elastic_residuals
from hvd_sparse.torch.functions import sparse_allreduce

_patches.install()

__all__ = [
    "LAGS",
    "SBC",
    "Dense",
    "GTopK",
    "GaussianK",
    "Stats",
    "StepStats",
    "ThreeLC",
    "TopK",
    "TotalStats",
    "common_weights",
    "elastic_residuals",
    "load_checkpoint",
    "local_steps",
    "mark_step",
    "meet",
    "replan",
    "report_loss",
    "save_checkpoint",
    "sparse_allreduce",
    "stats",
    "summary",
    "tuning",
    "watch",
]
__all__ += _reexport.public_names(_horovod, globals())

__getattr__ = _reexport.module_getattr(__name__, _horovod)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
