"""A plan over time whose local steps ruin a training is given up for a more cautious one."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from hvd_sparse.compression import LocalSteps, Wire
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.over_time import Observed, PlannerOverTime
from hvd_sparse.torch import LAGS, Dense
from hvd_sparse.tuning.measurer import Measurer

pytestmark = pytest.mark.skipif(hvd.size() == 1, reason="one rank exchanges nothing")
FEATURES, BATCH, STEPS = 48, 24, 2400
# The ranks come to rest between two meetings. So each meeting brings the same differences again,
# which add up in the residuals until they are sent.
RUINOUS = LAGS(
    adaptive=False,
    density=0.01,
    warmup=None,
    wire=Wire(values="int4", indices="packed"),
    local_steps=LocalSteps(every=64, delay=8),
)


def last_loss(compression):
    """Trains a linear model on noisy data; returns the mean loss of the last steps of all ranks."""
    torch.manual_seed(0)
    model = torch.nn.Linear(FEATURES, FEATURES, bias=False)
    target = torch.randn(FEATURES, FEATURES)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        named_parameters=model.named_parameters(),
        compression=compression,
    )
    generator = torch.Generator().manual_seed(hvd.rank())
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, FEATURES, generator=generator)
        noise = torch.randn(BATCH, FEATURES, generator=generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), inputs @ target.T + noise)
        loss.backward()
        losses.append(loss.detach())
        if compression.is_local:
            optimizer.exchange.report_loss(losses[-1])
        optimizer.step()
    return float(hvd.allreduce(torch.stack(losses[-50:]).mean(), name="loss")), optimizer


def test_the_guard_rescues_a_training_that_a_fixed_setting_ruins(monkeypatch, caplog):
    slow = Network.assumed(hvd.size(), 5e3, 1e-3)
    monkeypatch.setattr(Measurer, "network", lambda _: slow)
    best = PlannerOverTime.best  # whatever the times of this machine
    monkeypatch.setattr(
        PlannerOverTime,
        "best",
        lambda planner, seen: best(planner, Observed(compute=2e-3, most_steps=seen.most_steps)),
    )
    dense, _ = last_loss(Dense())
    ruined, _ = last_loss(RUINOUS)
    guarded, optimizer = last_loss(LAGS(local_steps="auto"))
    assert ruined > 4 * dense
    assert guarded < 1.1 * dense
    if hvd.rank() == 0:
        assert "the mean loss has risen from" in caplog.text
    plan = optimizer.exchange.tuning.over_time
    assert plan.local_steps.every < 32
