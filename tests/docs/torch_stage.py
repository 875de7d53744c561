"""What code of the documentation takes for granted, for PyTorch: setups import it."""

from __future__ import annotations

from collections.abc import Iterator

import horovod.torch as hvd
import torch
import torch.nn.functional as F

from hvd_sparse.torch import LAGS

INPUTS, CLASSES = 64, 10


def small_model() -> torch.nn.Module:
    """The same on all ranks: two layers that travel sparse, two biases that do not."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, 64), torch.nn.ReLU(), torch.nn.Linear(64, CLASSES)
    )


def batches(count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and labels, others on every rank."""
    random = torch.Generator().manual_seed(hvd.rank())
    for _ in range(count):
        yield (
            torch.randn(8, INPUTS, generator=random),
            torch.randint(CLASSES, (8,), generator=random),
        )


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """So many steps."""
    for inputs, labels in batches(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def trained(compression=LAGS, *, steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model and its DistributedOptimizer after so many steps."""
    model = small_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        compression=compression,
    )
    train(model, optimizer, steps)
    return model, optimizer
