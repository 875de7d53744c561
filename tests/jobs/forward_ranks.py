"""Trains with steps that do not wait, and as usual; ends while the last step is in flight.

forward_ranks.py shutdown|exit
"""

from __future__ import annotations

import sys

import horovod.torch as hvd
import torch

from hvd_sparse.compression import Layers
from hvd_sparse.pytorch import in_flight
from hvd_sparse.torch import TopK


def trained(waits: bool) -> torch.nn.Module:
    """Returns a model after a few steps with gradients of this rank's own."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        compression=TopK(density=0.1, layers=Layers(min_numel=64, bucket_numel=1)),
        wait_in_forward=waits,
    )
    generator = torch.Generator().manual_seed(hvd.rank())
    for _ in range(5):
        model(torch.randn(8, 64, generator=generator)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def main() -> None:
    hvd.init()
    rank = hvd.rank()
    usual, model = trained(False), trained(True)
    assert all(in_flight.is_in_flight(param) for param in model.parameters())
    if sys.argv[1] == "exit":
        print(f"rank {rank} leaves", flush=True)
        return
    hvd.shutdown()  # the optimizer is gone already
    assert not any(in_flight.is_in_flight(param) for param in model.parameters())
    pairs = zip(usual.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    print(f"rank {rank} has the same weights", flush=True)


if __name__ == "__main__":
    main()
