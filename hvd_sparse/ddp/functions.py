"""sparse_allreduce of one tensor over a process group, with a residual that the caller keeps."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hvd_sparse.arrays.channels import Channels
from hvd_sparse.compression import Compression
from hvd_sparse.ddp.host import GroupHost, checked_reduction
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.pytorch.functions import DEFAULT, allreduce

_channels = Channels()


def sparse_allreduce(
    tensor: torch.Tensor,
    residual: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    compression: Compression | type[Compression] = DEFAULT,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.AVG,
    name: str | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Averages or sums a tensor over all ranks, up to the residuals that they keep. Collective.

    For each entry, summed over the P ranks: tensor + residual before = P * result + residual after
    (for ReduceOp.SUM: result + residual after). All ranks of a group make their calls in the same
    order.

    Args:
        tensor: On the CPU, or on a GPU if this build has CUDA; float64, float32, float16 or
            bfloat16, of any shape; not changed, unless it is `out`.
        residual: The values that this rank has not sent yet: float32, contiguous, on the device of
            `tensor` and with as many elements. Zeros at first; updated in place. It shares
            no memory with `tensor`.
        out: Tensor to write the result to: contiguous, of the shape, type and device of `tensor`,
            which it may be; undefined after an error. None: a new tensor, whose fresh memory may
            take longer than the exchange.
        compression: A class or an instance; its density, sparsifier, collective and wire apply. Its
            warm-up, feedback and local steps do not: a call counts no steps. Default:
            GTopK(density=0.01).
        op: ReduceOp.AVG or ReduceOp.SUM of torch.distributed.
        name: Distinguishes tensors of the same size, and appears in errors.
        group: A process group that contains this rank. None: all ranks.

    Returns:
        `out`, or a new contiguous tensor of the shape and type of `tensor`; bitwise equal on all
        ranks.

    Raises:
        UnavailableError: torch.distributed is not initialised.
        InvalidArgumentError: An argument lies outside its limits, or differs between ranks.
        UnsupportedError: The op, or the tensor's type or device, is not supported; or a CUDA graph
            is being captured.
        NonFiniteGradientError: On every rank, if `tensor` is not finite on one. The finite entries
            are then in the residual.
        ExchangeFailedError: Another rank refused an argument, ended the exchange otherwise, or
            died. The next call builds it anew.
    """
    host = GroupHost(group, call="sparse_allreduce()")
    if not host.included():
        raise InvalidArgumentError(f"group must contain this process (rank {dist.get_rank()})")
    return allreduce(
        _channels,
        tensor,
        residual,
        out=out,
        compression=compression,
        reduction=lambda: checked_reduction(op=op),
        name=name,
        ranks=host.of_call(),
    )
