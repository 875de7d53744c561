"""sparse_allreduce of one tensor, with a residual that the caller keeps."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch

from hvd_sparse.arrays.channels import Channels
from hvd_sparse.compression import Compression, GTopK, as_compression
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.exchange.reduction import checked_reduction
from hvd_sparse.pytorch.devices import current_stream
from hvd_sparse.pytorch.gradient_memory import Extent
from hvd_sparse.pytorch.guards import check_not_capturing
from hvd_sparse.pytorch.settings import check_parameter
from hvd_sparse.pytorch.slots import buffer_of

_DEFAULT = GTopK(density=0.01)


_channels = Channels(hvd)


def sparse_allreduce(
    tensor: torch.Tensor,
    residual: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    compression: Compression | type[Compression] = _DEFAULT,
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
            `tensor` and with as many elements. Zeros at first; updated in place.
        out: Tensor to write the result to: contiguous, of the shape, type and device of `tensor`,
            which it may be; undefined after an error. None: a new tensor, whose fresh memory may
            take longer than the exchange.
        compression: A class or an instance; its density, sparsifier and collective apply. Its
            warm-up does not: a call counts no steps. Default: GTopK(density=0.01).
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
        ExchangeFailedError: Another rank ended the exchange, or died. The next call builds it anew.
    """
    compression = as_compression(compression)
    reduction = checked_reduction(hvd, op=op)
    _check_tensors(tensor, residual)
    if out is None:
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
    else:
        _check_out(out, tensor, residual)
        result = out if out.data_ptr() == tensor.data_ptr() else out.copy_(tensor.detach())
    if tensor.numel() == 0:
        return result
    _channels.allreduce(
        buffer_of(result),
        buffer_of(residual),
        compression=compression,
        reduction=reduction,
        name=name,
        process_set=process_set,
        device=str(tensor.device),
        stream=current_stream(tensor.device),
    )
    return result


def _check_tensors(tensor: torch.Tensor, residual: torch.Tensor) -> None:
    for name, value in (("tensor", tensor), ("residual", residual)):
        if not isinstance(value, torch.Tensor):
            raise InvalidArgumentError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if tensor.numel() >= 2**31:
        raise UnsupportedError(f"tensor must have fewer than 2^31 elements, got {tensor.numel()}")
    check_parameter("tensor", tensor)
    check_not_capturing(tensor.device)
    if residual.dtype != torch.float32:
        raise InvalidArgumentError(f"residual must be float32, got {residual.dtype}")
    if residual.device != tensor.device or not residual.is_contiguous():
        place = "the CPU" if tensor.device.type == "cpu" else str(tensor.device)
        raise InvalidArgumentError(f"residual must be contiguous and on {place}")
    if residual.requires_grad:
        raise InvalidArgumentError("residual must not require grad")
    if residual.numel() != tensor.numel():
        raise InvalidArgumentError(
            f"residual must have as many elements as tensor ({tensor.numel()}), got "
            f"{residual.numel()}"
        )


def _check_out(out: torch.Tensor, tensor: torch.Tensor, residual: torch.Tensor) -> None:
    if not isinstance(out, torch.Tensor):
        raise InvalidArgumentError(f"out must be a torch.Tensor, got {type(out).__name__}")
    for what in ("shape", "dtype", "device"):
        wanted, got = getattr(tensor, what), getattr(out, what)
        if got != wanted:
            raise InvalidArgumentError(f"out must have {what} {wanted}, as tensor has, got {got}")
    if not out.is_contiguous():
        raise InvalidArgumentError("out must be contiguous")
    if out.requires_grad:
        raise InvalidArgumentError("out must not require grad")
    if tensor.numel() == 0:
        return
    memory = Extent.of(out)
    if memory.meets(Extent.of(residual)):
        raise InvalidArgumentError("out must not share memory with residual")
    same = out.data_ptr() == tensor.data_ptr() and tensor.is_contiguous()
    if not same and memory.meets(Extent.of(tensor.detach())):
        raise InvalidArgumentError("out must be tensor, or share no memory with it")
