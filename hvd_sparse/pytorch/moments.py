"""Averages what ranks that take local steps have besides weights: moments and statistics."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch

from hvd_sparse.errors import RanksDisagreeError
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.pytorch.host import Link
from hvd_sparse.pytorch.shards import shard_of


def moments_of(
    optimizer: torch.optim.Optimizer, params: Iterable[torch.Tensor]
) -> list[torch.Tensor]:
    """Returns an optimizer's tensors of floating-point numbers that are shaped as their parameters.

    They come in the order of `params`, and then of the names in the optimizer's state: exp_avg,
    exp_avg_sq, momentum_buffer and their kind. Counters of steps are not among them.
    """
    return [
        shard_of(value)
        for param in params
        for key, value in sorted(optimizer.state.get(param, {}).items())
        if key != "step"
        and isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.shape == param.shape
    ]


@torch.no_grad()
def average(tensors: Sequence[torch.Tensor], what: str, link: Link) -> None:
    """Replaces tensors by their averages over the ranks, which the host sums. Collective.

    A tensor that has the same bits on all ranks keeps them, and is not sent.

    Args:
        tensors: Dense tensors of floating-point numbers, of the same shapes on all ranks.
        what: Their name, for errors: "moments".
        link: The connection between the ranks; no bucket is in flight.

    Raises:
        RanksDisagreeError: The ranks have tensors of different shapes; nothing was changed.
        ExchangeFailedError: Another rank ended the exchange, or died.
    """
    tensors = [_without_copies(one) for one in tensors]
    shapes = repr([tuple(one.shape) for one in tensors]).encode()
    numel = sum(map(torch.numel, tensors))
    rows = link.core.gather([len(tensors), numel, *_digest(shapes)], what=f"averaging {what}")
    if any(row != rows[0] for row in rows):
        raise RanksDisagreeError(
            f"{what} can be averaged only if all ranks have the same, of the same shapes, got "
            + ", ".join(
                f"{count:.0f} with {numel:.0f} entries on rank {rank}"
                for rank, (count, numel, *_) in enumerate(rows)
            )
        )
    digests = [number for one in tensors for number in _digest(_bytes_of(one))]
    rows = link.core.gather(digests, what=f"averaging {what}") if tensors else []
    differ = [any(row[at] != rows[0][at] for row in rows) for at in range(len(digests))]
    changed = [
        one for one, *halves in zip(tensors, differ[::2], differ[1::2], strict=True) if any(halves)
    ]
    if not changed:
        return
    is_double = any(one.dtype == torch.float64 for one in changed)
    dtype = torch.float64 if is_double else torch.float32
    # Divided first: the sum of what a type holds may lie beyond the type.
    flat = torch.cat([one.reshape(-1).to(dtype) for one in changed]).div_(len(rows))
    adding = Reduction.checked(averages=False, gradient_predivide_factor=1.0)
    averages = link.messages.wait_for(link.host.reduce(flat, f"{link.prefix}.{what}", adding))
    parts = averages.split([one.numel() for one in changed])
    for one, part in zip(changed, parts, strict=True):
        one.copy_(part.view_as(one))


def _without_copies(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of a tensor without the copies of entries that an expanded one shows."""
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).cpu().view(torch.uint8).numpy().data


def _digest(data: bytes | memoryview) -> tuple[int, int]:
    """Returns a digest of 96 bits as two numbers that float64 holds exactly."""
    digest = hashlib.blake2b(data, digest_size=12).digest()
    return int.from_bytes(digest[:6], "little"), int.from_bytes(digest[6:], "little")
