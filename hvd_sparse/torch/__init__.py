"""Sparse gradient exchange for PyTorch under Horovod.

Importing this module teaches `horovod.torch.DistributedOptimizer` sparse compressions:

    import horovod.torch as hvd
    from hvd_sparse.torch import LAGS

    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=LAGS(density=0.01)
    )

`import hvd_sparse.torch as hvd` works as well: everything in horovod.torch is here, too.
"""

from typing import Any

import horovod.torch as _horovod

from hvd_sparse.compression import LAGS, GaussianK, GTopK, TopK
from hvd_sparse.schedules import Warmup
from hvd_sparse.torch import patches as _patches
from hvd_sparse.torch.functions import sparse_allreduce
from hvd_sparse.torch.optimizer import stats
from hvd_sparse.torch.step_stats import Stats, StepStats, TotalStats
from hvd_sparse.torch.tuning import replan, tuning

_patches.install()

__all__ = [
    "LAGS",
    "GTopK",
    "GaussianK",
    "Stats",
    "StepStats",
    "TopK",
    "TotalStats",
    "Warmup",
    "replan",
    "sparse_allreduce",
    "stats",
    "tuning",
]
__all__ += [name for name in dir(_horovod) if not name.startswith("_") and name not in globals()]


def __getattr__(name: str) -> Any:
    try:
        return getattr(_horovod, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
