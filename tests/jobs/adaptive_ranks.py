"""Trains a few steps with LAGS without a warm-up; rank 0 prints its findings."""

from __future__ import annotations

import json
import time

import horovod.torch as hvd
import torch
from torch import nn

from hvd_sparse.torch import LAGS
from hvd_sparse.tuning.stages import Stage

STEPS = 30

hvd.init()
torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Sequential(*(nn.Linear(160, 160) for _ in range(4)))
begin = time.perf_counter()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01),
    named_parameters=model.named_parameters(),
    compression=LAGS(warmup=None),
)
construction = time.perf_counter() - begin
batch = torch.randn(16, 160, generator=torch.Generator().manual_seed(hvd.rank()))
steps: dict[str, list[float]] = {}
while sum(map(len, steps.values())) < STEPS:
    begin = time.perf_counter()
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    kind = "sparse" if optimizer.exchange.stats.last.buckets else "dense"
    steps.setdefault(kind, []).append(time.perf_counter() - begin)

found = optimizer.exchange.tuning
assert found.stage is Stage.SETTLED, found.stage
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
everybody = hvd.allgather(weights[None], name="weights")
assert torch.equal(everybody, weights.expand_as(everybody)), "the replicas differ"
sums = []
for _ in range(3):
    begin = time.perf_counter()
    hvd.allreduce(weights, name="sum")
    sums.append(time.perf_counter() - begin)
if hvd.rank() == 0:
    print(
        json.dumps(
            {
                "construction": construction,
                "sparse": found.sparse,
                "dense_seconds": found.dense_seconds,
                "dense_sum": min(sums),
                "sparse_seconds": found.sparse_seconds,
                "predicted_dense": found.plan.dense_seconds,
                "predicted_sparse": found.plan.step_seconds,
                "beta": found.network.link.beta,
                "steps": {kind: len(seconds) for kind, seconds in steps.items()},
            }
        ),
        flush=True,
    )
