"""Networks of DistributedDataParallel with an attached optimizer."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.compression import Layers
from hvd_sparse.ddp import TopK, attach
from hvd_sparse.errors import ExchangeFailedError, GradientInFlightError
from tests.gpus import DEVICE
from tests.parallel_ddp.ddp_framework import BUCKET_MB
from tests.torch_model import array_of
from tests.torch_model import residuals as residuals_of

SMALL = {"layers": Layers(min_numel=64, bucket_numel=1500)}
EVERYTHING = TopK(density=1.0, layers=Layers(min_numel=1))
RATE = 2.0**-6  # so that changes of integer gradients are exact
# A rank may learn of another's mistake before it makes its own.
ON_ANY_RANK = (GradientInFlightError, ExchangeFailedError)


def network(**options):
    """Returns a DDP network with equal weights on all ranks."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(20, 40), torch.nn.ReLU(), torch.nn.Linear(40, 10)
    options = {"bucket_cap_mb": BUCKET_MB, **options}
    return DistributedDataParallel(torch.nn.Sequential(*layers).to(DEVICE), **options)


def attached(ddp, compression=EVERYTHING, *, kind=torch.optim.SGD, **options):
    optimizer = kind(ddp.parameters(), lr=RATE)
    attach(ddp, optimizer, compression, **options)
    return optimizer


def batch(step, framework):
    generator = torch.Generator().manual_seed(100 * step + framework.rank)
    return torch.randn(8, 20, generator=generator).to(DEVICE)


def residuals(optimizer):
    return {name: part.numpy() for name, part in residuals_of(optimizer).items()}


def weights_of(module):
    return {name: array_of(one) for name, one in module.named_parameters()}


def integers(framework, step):
    given = framework.integer_gradients(step).items()
    return {name: torch.from_numpy(one).to(DEVICE).float() for name, one in given}
