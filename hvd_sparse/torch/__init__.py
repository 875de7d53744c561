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

from hvd_sparse.compression import LAGS, SBC, Dense, GaussianK, GTopK, ThreeLC, TopK
from hvd_sparse.pytorch.dropback import DropBack
from hvd_sparse.ranks import horovod_names as _reexport
from hvd_sparse.torch import patches as _patches
from hvd_sparse.torch.functions import sparse_allreduce
from hvd_sparse.torch.user_exchange import Exchange

_patches.install()

__all__ = [
    "LAGS",
    "SBC",
    "Dense",
    "DropBack",
    "Exchange",
    "GTopK",
    "GaussianK",
    "ThreeLC",
    "TopK",
    "sparse_allreduce",
]
__all__ += _reexport.public_names(_horovod, globals())

__getattr__ = _reexport.module_getattr(__name__, _horovod)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
