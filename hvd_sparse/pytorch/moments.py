"""Averages what ranks that take local steps have besides weights: moments and statistics."""

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
def average(
    tensors: list[torch.Tensor], what: str, *, messages: Messages, host: TorchHost, prefix: str
) -> None:
    """Replaces tensors by their averages over the ranks, which the host sums. Collective.

    Args:
        tensors: Tensors of floating-point numbers, of the same shapes on all ranks.
        what: Their name, for errors: "moments".
        messages: Messages between the ranks.
        host: The host of the ranks.
        prefix: Prefix of operations' names, unique to the exchange.

    Raises:
        RanksDisagreeError: The ranks have different numbers of entries; nothing was changed.
        ExchangeFailedError: Another rank ended the exchange, or died.
    """
    numel = sum(map(torch.numel, tensors))
    numels = [int(row[0]) for row in messages.gather([numel], what=what)()]
    if len(set(numels)) > 1:
        raise RanksDisagreeError(
            f"{what} can be averaged only if all ranks have the same, got "
            + ", ".join(f"{numel} entries on rank {rank}" for rank, numel in enumerate(numels))
        )
    if not tensors:
        return
    dtype = reduce(torch.promote_types, [one.dtype for one in tensors], torch.float32)
    flat = torch.cat([one.reshape(-1).to(dtype) for one in tensors])
    averaging = Reduction.checked(averages=True, gradient_predivide_factor=1.0)
    averages = messages.wait_for(host.reduce(flat, f"{prefix}.{what}", averaging))
    parts = averages.split([one.numel() for one in tensors])
    for one, part in zip(tensors, parts, strict=True):
        one.copy_(part.view_as(one))
