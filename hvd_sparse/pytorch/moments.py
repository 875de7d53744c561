"""Averages the moments of the ranks' optimizers, where ranks take local steps."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import torch

from hvd_sparse.errors import RanksDisagreeError
from hvd_sparse.exchange.messages import Messages
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.pytorch.host import TorchHost


def moments_of(
    optimizer: torch.optim.Optimizer, params: Iterable[torch.Tensor]
) -> list[torch.Tensor]:
    """Returns an optimizer's tensors of floating-point numbers that are shaped as their parameters.

    They come in the order of `params`, and then of the names in the optimizer's state: exp_avg,
    exp_avg_sq, momentum_buffer and their kind. Counters of steps are not among them.
    """
    return [
        value
        for param in params
        for key, value in sorted(optimizer.state.get(param, {}).items())
        if key != "step"
        and isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.shape == param.shape
    ]


@torch.no_grad()
def average(moments: list[torch.Tensor], *, messages: Messages, host: TorchHost, name: str) -> None:
    """Replaces moments by their averages over the ranks, which the host sums. Collective.

    Args:
        moments: The moments of this rank's optimizer.
        messages: Messages between the ranks.
        host: The host of the ranks.
        name: Name of the operation that sums, unique to the exchange.

    Raises:
        RanksDisagreeError: The ranks' optimizers have different numbers of moments; nothing was
            changed.
        ExchangeFailedError: Another rank ended the exchange, or died.
    """
    numels = [
        int(row[0]) for row in messages.gather([sum(map(torch.numel, moments))], what="moments")()
    ]
    if len(set(numels)) > 1:
        raise RanksDisagreeError(
            "moments can be averaged only if all ranks' optimizers have the same, got "
            + ", ".join(f"{numel} entries on rank {rank}" for rank, numel in enumerate(numels))
        )
    if not moments:
        return
    dtype = reduce(torch.promote_types, [one.dtype for one in moments], torch.float32)
    flat = torch.cat([one.reshape(-1).to(dtype) for one in moments])
    averaging = Reduction.checked(averages=True, gradient_predivide_factor=1.0)
    averages = messages.wait_for(host.reduce(flat, name, averaging))
    parts = averages.split([one.numel() for one in moments])
    for one, part in zip(moments, parts, strict=True):
        one.copy_(part.view_as(one))
