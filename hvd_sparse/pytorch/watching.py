"""Reports on the exchange of gradients while it runs."""

from __future__ import annotations

from typing import Any

import torch

from hvd_sparse.compression.checks import checked_count
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.pytorch.attachment import require_attachment
from hvd_sparse.pytorch.forward import ForwardSteps
from hvd_sparse.pytorch.gradient_exchange import GradientExchange
from hvd_sparse.pytorch.hooks import opaque
from hvd_sparse.stats.metrics import ScalarWriter, Sink, metrics_of, sink_of, summary_of

# Number of entries whose squares are added up in float32, which takes a tenth of the time of
# float64; the sums of such parts are added up in float64.
NORM_PART = 1 << 16


def watch(
    optimizer: torch.optim.Optimizer,
    target: ScalarWriter | Sink,
    *,
    every: int = 1,
    norms: bool = False,
) -> None:
    """Reports the cost of every step, on the rank that calls this.

    On rank 0 alone::

        if rank == 0:
            watch(optimizer, SummaryWriter("runs/lags"), every=10)

    Args:
        optimizer: An optimizer with a sparse compression.
        target: A `torch.utils.tensorboard.SummaryWriter`, or anything with its `add_scalar`; or a
            function of the metrics by name, and the number of the step.
        every: Number of steps from one report to the next.
        norms: True to add `residual_norm` and `residual_over_gradient`: the Euclidean norm of what
            this rank has not sent, and its ratio to the norm of the averaged gradients. They cost a
            pass over both.

    Reports include the quality of selection in the steps in which the compression's `quality_every`
    measures it, which takes all ranks.

    Raises:
        InvalidArgumentError: The optimizer has no sparse compression, `every` is not a positive
            integer, or `target` is neither.
        UnsupportedError: `norms` with wait_in_forward.
    """
    require_attachment(optimizer)
    every = checked_count("every", every, low=1, high=2**62)
    if not callable(target) and not hasattr(target, "add_scalar"):
        raise InvalidArgumentError(
            f"target must be a SummaryWriter or a function, got {type(target).__name__}"
        )
    sink = sink_of(target)

    def tell(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        exchange = require_attachment(
            optimizer
        ).exchange  # another one after the ranks have changed
        last = None if exchange is None else exchange.stats.last
        if exchange is None or last is None or last.step % every:
            return
        metrics = metrics_of(last, None if exchange.tuner is None else exchange.tuner.tuning)
        if norms:
            metrics |= _norms(exchange, optimizer)
        sink(metrics, last.step)

    if norms and isinstance(require_attachment(optimizer).exchange, ForwardSteps):
        raise UnsupportedError(
            "norms=True cannot be used with wait_in_forward: after step(), residuals and "
            "gradients are in flight"
        )
    optimizer.register_step_post_hook(opaque(tell))


def summary(optimizer: torch.optim.Optimizer) -> str:
    """Returns a line about all steps so far, for the end of a run.

    Args:
        optimizer: An optimizer with a sparse compression.

    Raises:
        InvalidArgumentError: The optimizer has no sparse compression.
    """
    exchange = require_attachment(optimizer).exchange
    if exchange is None:
        return "one rank has nobody to exchange gradients with"
    params = [param for group in optimizer.param_groups for param in group["params"]]
    dense_bytes = sum(param.numel() * param.element_size() for param in params)
    stats = exchange.stats
    return summary_of(
        stats.total,
        dense_bytes=dense_bytes,
        size=exchange.world.size,
        density=0.0 if stats.last is None else stats.last.density_reached,
    )


@torch.no_grad()
def _norms(exchange: GradientExchange, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    residual = _norm([part for _, part in exchange.steps.state.residuals()])
    gradients = [
        param.grad
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
