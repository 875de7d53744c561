"""sparse_allreduce of one tensor, with a residual that the caller keeps."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch

from hvd_sparse.arrays.channels import Channels, Ranks
from hvd_sparse.compression import Compression
from hvd_sparse.exchange.reduction import checked_reduction
from hvd_sparse.pytorch.functions import DEFAULT, allreduce

_channels = Channels()


def sparse_allreduce(
    tensor: torch.Tensor,
    residual: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    compression: Compression | type[Compression] = DEFAULT,
    op: int = hvd.Average,
    name: str | None = None,
    process_set: Any = hvd.global_process_set,
) -> torch.Tensor:
    """Averages or sums a tensor over all ranks, up to the residuals that they keep. Collective.

    For each entry, summed over the P ranks: tensor + residual before = P * result + residual after
    (for op=Sum: result + residual after). All ranks of a set make their calls in the same order.

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
        op: Horovod's Average or Sum.
        name: Distinguishes tensors of the same size, and appears in errors.
        process_set: A process set of Horovod that contains this rank.

    Returns:
        `out`, or a new contiguous tensor of the shape and type of `tensor`; bitwise equal on all
        ranks.

    Raises:
        InvalidArgumentError: An argument lies outside its limits, or differs between ranks.
        UnsupportedError: The op, or the tensor's type or device, is not supported; or a CUDA graph
            is being captured.
        NonFiniteGradientError: On every rank, if `tensor` is not finite on one. The finite entries
            are then in the residual.
        ExchangeFailedError: Another rank refused an argument, ended the exchange otherwise, or
            died. The next call builds it anew.
    """
    return allreduce(
        _channels,
        tensor,
        residual,
        out=out,
        compression=compression,
        reduction=lambda: checked_reduction(hvd, op=op),
        name=name,
        ranks=Ranks.of_process_set(hvd, process_set),
    )
