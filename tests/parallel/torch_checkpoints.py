"""A model to save and load, for the tests of checkpoints."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import Layers
from hvd_sparse.torch import LAGS
from tests.parallel.torch_ranks import Toy, distribute, integer_gradients

FIXED = {"density": 0.1, "layers": Layers(min_numel=64)}
SIMPLE = LAGS(
    adaptive=False,
    collective="gtopk",
    warmup=None,
    **FIXED | {"layers": Layers(min_numel=64, bucket_numel=1500)},
)

several_ranks = pytest.mark.skipif(hvd.size() == 1, reason="a single rank has no residuals")


@pytest.fixture(autouse=True)
def sparse_verdict(verdict):
    """Makes sparse steps win, whatever the times."""
    verdict(sparse=True)


def new(compression=SIMPLE, optimizer=torch.optim.Adam):
    torch.manual_seed(1)
    model = Toy()
    options = {"optimizer": optimizer(model.parameters(), lr=0.5)}
    return model, distribute(model, compression, **options)


def train(model, optimizer, steps):
    """Takes steps whose gradients depend on random numbers, like those of dropout."""
    for step in steps:
        optimizer.zero_grad()
        gradients = integer_gradients(model, step)
        model.backward({n: g * torch.randint(0, 2, g.shape) for n, g in gradients.items()})
        optimizer.step()


def names_beside(folder):
    return sorted(path.name for path in folder.parent.iterdir())
