"""Sparse gradient exchange for DistributedDataParallel, under torch.distributed; without Horovod.

    from hvd_sparse.ddp import LAGS, attach

    model = DistributedDataParallel(model)
    attach(model, optimizer, LAGS)

The options of compressions, and the functions below, are those of hvd_sparse.torch.
"""

from hvd_sparse.compression import (
    LAGS,
    SBC,
    Dense,
    GaussianK,
    GTopK,
    ThreeLC,
    TopK,
)
from hvd_sparse.ddp.attaching import attach
from hvd_sparse.ddp.checkpoint import load_checkpoint, save_checkpoint
from hvd_sparse.ddp.functions import sparse_allreduce
from hvd_sparse.pytorch.meetings import common_weights, local_steps, meet, report_loss
from hvd_sparse.pytorch.optimizer import mark_step, stats
from hvd_sparse.pytorch.tuning import replan, tuning
from hvd_sparse.pytorch.watching import summary, watch
from hvd_sparse.stats.step_stats import Stats, StepStats, TotalStats

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
    "attach",
    "common_weights",
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
