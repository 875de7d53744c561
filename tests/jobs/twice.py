"""Two lives of Horovod in one process, with an optimizer in each; run by test_transports.py.

Both optimizers have the same parameters, and the first one still exists in the second life.

 Arguments: rendezvous of Gloo's ranks, HOST:PORT, for each life. At the same one, Gloo would find
     the addresses of the previous life.
"""

from __future__ import annotations

import sys

import horovod.torch as hvd
import torch

from benchmarks.gloo_world import prepare
from hvd_sparse.compression import Layers
from hvd_sparse.torch import LAGS

model = torch.nn.Linear(64, 32)
optimizers = []
for life, place in enumerate(sys.argv[1:], start=1):
    prepare(place, "lo")
    hvd.init()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        compression=LAGS(adaptive=False, density=0.1, layers=Layers(min_numel=1)),
    )
    optimizers.append(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    print(f"life {life} over {optimizer.exchange.stats.last.transport} is done", flush=True)
    hvd.shutdown()
