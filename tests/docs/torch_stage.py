"""Objects that the documentation's code for PyTorch assumes; setups import them."""

from __future__ import annotations

from collections.abc import Iterator

import horovod.torch as hvd
import torch
import torch.nn.functional as F

from hvd_sparse.torch import LAGS

INPUTS, CLASSES = 64, 10


def small_model() -> torch.nn.Module:
    """Returns a model of two sparse layers and two dense biases, the same on all ranks."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, 64), torch.nn.ReLU(), torch.nn.Linear(64, CLASSES)
    )


def batches(count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields inputs and labels, which differ by rank."""
    random = torch.Generator().manual_seed(hvd.rank())
    for _ in range(count):
        yield (
            torch.randn(8, INPUTS, generator=random),
            torch.randint(CLASSES, (8,), generator=random),
        )


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Trains for some steps."""
    for inputs, labels in batches(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def trained(compression=LAGS, *, steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Returns a model and its DistributedOptimizer after some steps."""
    model = small_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        compression=compression,
    )
    train(model, optimizer, steps)
    return model, optimizer
