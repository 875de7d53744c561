"""Norms of residuals and gradients, for reports on the exchange while it runs."""

from __future__ import annotations

import torch

from hvd_sparse.pytorch.gradient_exchange import GradientExchange
from hvd_sparse.pytorch.shards import shard_of

# Number of entries whose squares are added up in float32, which takes a tenth of the time of
# float64; the sums of such parts are added up in float64.
NORM_PART = 1 << 16


@torch.no_grad()
def norms_of(exchange: GradientExchange, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Returns the norm of this rank's residual, and its ratio to that of averaged gradients."""
    residual = _norm([part for _, part in exchange.steps.state.residuals()])
    gradients = [
        shard_of(param.grad)
        for group in optimizer.param_groups
        for param in group["params"]
        if param.grad is not None
    ]
    gradient = _norm(gradients)
    return {
        "residual_norm": residual,
        "residual_over_gradient": residual / gradient if gradient else float("nan"),
    }


def _norm(tensors: list[torch.Tensor]) -> float:
    parts = (
        part.float() for tensor in tensors for part in torch.split(tensor.reshape(-1), NORM_PART)
    )
    squares = [part.dot(part) for part in parts]
    return float(torch.stack(squares).double().sum().sqrt()) if squares else 0.0
