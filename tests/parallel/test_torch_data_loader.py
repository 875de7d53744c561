"""Data loaders whose workers are forked while threads of exchanges run."""

from __future__ import annotations

import gc
import warnings

import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader, TensorDataset

from hvd_sparse.compression import Layers
from hvd_sparse.torch import TopK
from tests.parallel.torch_ranks import (
    distribute,
)
from tests.torch_model import residuals


def collect_garbage(_):
    """Collects the parent's garbage in a new worker, too."""
    gc.collect()


def train(workers):
    """Trains for two epochs, each with workers of its own; returns weights and residuals."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 5))
    compression = TopK(density=0.1, layers=Layers(min_numel=64))
    abandoned = [distribute(model, compression)]
    abandoned.append(abandoned)  # a cycle, which only the garbage collector frees
    optimizer = distribute(model, compression, optimizer=torch.optim.SGD(model.parameters(), 0.01))
    del abandoned
    generator = torch.Generator().manual_seed(hvd.rank())
    data = TensorDataset(torch.randn(48, 20, generator=generator))
    loader = DataLoader(
        data,
        batch_size=8,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        worker_init_fn=collect_garbage,
    )
    for _ in range(2):
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    return {
        **model.state_dict(),
        **{f"residual of {k}": v for k, v in residuals(optimizer).items()},
    }


def test_forked_workers_change_nothing_and_python_warns_at_most_of_the_fork():
    expected = train(workers=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = train(workers=1)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    told = {str(one.message) for one in caught}
    # From Python 3.12 on it warns for any threads: stock Horovod causes that as well.
    assert all("is multi-threaded, use of fork()" in message for message in told), told
