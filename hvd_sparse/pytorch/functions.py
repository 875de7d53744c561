"""sparse_allreduce of one tensor, whoever runs the ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hvd_sparse.arrays.channels import Channels, Ranks
from hvd_sparse.compression import Compression, GTopK, as_compression
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.pytorch.devices import current_stream
from hvd_sparse.pytorch.gradient_memory import Extent
from hvd_sparse.pytorch.guards import check_not_capturing
from hvd_sparse.pytorch.settings import check_parameter
from hvd_sparse.pytorch.slots import buffer_of

DEFAULT = GTopK(density=0.01)


def allreduce(
    channels: Channels,
    tensor: torch.Tensor,
    residual: torch.Tensor,
    *,
    out: torch.Tensor | None,
    compression: Compression | type[Compression],
    reduction: Callable[[], Reduction],
    name: str | None,
    ranks: Ranks,
) -> torch.Tensor:
    """Averages or sums a tensor; see `sparse_allreduce` of either interface. Collective.

    Args:
        channels: The exchanges of that interface.
        tensor: See there, and so below.
        residual: The residual.
        out: Tensor to write the result to, or None.
        compression: The compression.
        name: The name, or None.
        reduction: Returns the average or sum that was asked for, or refuses it.
        ranks: The ranks, this one among them.
    """
    with channels.refusing(ranks):
        reduces = reduction()
        chosen = as_compression(compression)
        _check_tensors(tensor, residual)
        if out is not None:
            _check_out(out, tensor, residual)
    if out is None:
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
    else:
        result = out if out.data_ptr() == tensor.data_ptr() else out.copy_(tensor.detach())
    if tensor.numel() == 0:
        return result
    channels.allreduce(
        buffer_of(result),
        buffer_of(residual),
        compression=chosen,
        reduction=reduces,
        name=name,
        ranks=ranks,
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
    if tensor.numel() > 0 and Extent.of(residual).meets(Extent.of(tensor.detach())):
        raise InvalidArgumentError("residual must not share memory with tensor")


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
