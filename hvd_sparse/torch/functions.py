"""sparse_allreduce: one tensor, with a residual that the caller keeps."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch

from hvd_sparse import plan
from hvd_sparse.buckets import Bucket, Layer
from hvd_sparse.compression import Compression, GTopK, as_compression
from hvd_sparse.errors import (
    ExchangeFailedError,
    HvdSparseError,
    InvalidArgumentError,
    UnsupportedError,
)
from hvd_sparse.exchange import Exchange
from hvd_sparse.planned_bucket import add_planned_bucket
from hvd_sparse.reduction import checked_reduction
from hvd_sparse.torch.devices import current_stream
from hvd_sparse.torch.settings import check_parameter
from hvd_sparse.torch.slots import buffer_of
from hvd_sparse.world import World

_DEFAULT = GTopK(density=0.01)


class _Channel:
    """The exchange of a process set; it has a bucket per (numel, compression, name, device type).

    A rank's bucket stays on the device on which it was first met.
    """

    def __init__(self, process_set: Any) -> None:
        self._ranks = process_set.ranks
        self._world = World.from_horovod(hvd, process_set)
        self.exchange = Exchange.between_ranks(
            self._world, name=f"sparse_allreduce in process set {process_set.process_set_id}"
        )
        self._buckets: dict[
            tuple[int, str, str, str], tuple[int, list[int], torch.Tensor, torch.device]
        ] = {}

    def bucket(
        self, name: str | None, numel: int, compression: Compression, device: torch.device
    ) -> tuple[int, list[int], torch.Tensor]:
        """Its number, ks and state; agreed upon by all ranks when it is first met."""
        key = (numel, repr(compression), name or "", device.type)
        if key not in self._buckets:
            for rank, theirs in zip(self._ranks, self._world.allgather_object(key), strict=True):
                if theirs != key:
                    raise InvalidArgumentError(
                        "sparse_allreduce was called with (numel, compression, name, device) = "
                        f"{theirs} on rank {rank} and {key} on rank {hvd.rank()}"
                    )
            label = name or f"tensor of {numel}"
            layout = Bucket((Layer(label, numel),), layer_wise=False)
            (choice,) = plan.fixed_choices(layout.layers, compression)
            ks = plan.largest_ks(layout, choice.densities, compression.warmup)
            number = add_planned_bucket(self.exchange, layout, choice, compression, str(device))
            self._buckets[key] = (number, ks, torch.zeros(1, 4), device)
        number, ks, state, first_device = self._buckets[key]
        if device != first_device:
            raise InvalidArgumentError(
                f"sparse_allreduce of such a tensor was on '{first_device}' before, and now is on "
                f"'{device}': give it another name"
            )
        return number, ks, state


_channels: dict[int, _Channel] = {}


def _channel_of(process_set: Any) -> _Channel:
    key = process_set.process_set_id
    channel = _channels.get(key)
    try:
        if channel is not None:
            channel.exchange.check()
    except ExchangeFailedError:
        del _channels[key]
        raise
    except HvdSparseError:  # closed: Horovod was shut down and initialised again
        channel = None
    if channel is None:
        channel = _channels[key] = _Channel(process_set)
    return channel


def sparse_allreduce(
    tensor: torch.Tensor,
    residual: torch.Tensor,
    *,
    compression: Compression | type[Compression] = _DEFAULT,
    op: int = hvd.Average,
    name: str | None = None,
    process_set: Any = hvd.global_process_set,
) -> torch.Tensor:
    """Averages or sums a tensor over all ranks, as far as a sparse exchange carries it. Collective.

    Entry by entry, summed over the ranks P: tensor + residual before = P * result + residual after
    (for op=Sum: result + residual after). Calls are made in the same order on all ranks of a set.

    Args:
        tensor: On the CPU, or a GPU where this build has CUDA; float64, float32, float16 or
            bfloat16, of any shape; not changed.
        residual: float32, contiguous, beside `tensor` and with as many elements: what this rank has
            not sent yet. Zeros at first; updated in place.
        compression: A class or an instance, of which density, sparsifier and collective apply.
            Default: GTopK(density=0.01).
        op: Horovod's Average or Sum.
        name: Tells apart tensors of the same size, and appears in errors.
        process_set: Horovod's; contains this rank.

    Returns:
        A new contiguous tensor of the shape and type of `tensor`, bitwise equal on all ranks.

    Raises:
        InvalidArgumentError: An argument lies outside its limits, or differs between ranks.
        UnsupportedError: The op, or the type or place of the tensor.
        NonFiniteGradientError: On every rank, when `tensor` is not finite on one. The finite
            entries are in the residual then.
        ExchangeFailedError: Another rank ended the exchange, or died. The next call builds it anew.
    """
    compression = as_compression(compression)
    reduction = checked_reduction(hvd, op=op)
    _check_tensors(tensor, residual)
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    if tensor.numel() == 0:
        return result
    channel = _channel_of(process_set)
    exchange = channel.exchange
    try:
        number, ks, state = channel.bucket(name, tensor.numel(), compression, tensor.device)
        stream = current_stream(tensor.device)
        handle = exchange.start(
            number,
            [buffer_of(result)],
            residual=buffer_of(residual),
            states=buffer_of(state),
            ks=ks,
            decays=[1.0],
            output_scale=reduction.scales(process_set.size())[1],
            stream=stream,
        )
        exchange.wait(handle, stream=stream)
        exchange.commit()
    except ExchangeFailedError:
        del _channels[process_set.process_set_id]
        exchange.close()
        raise
    return result


def _check_tensors(tensor: torch.Tensor, residual: torch.Tensor) -> None:
    for name, value in (("tensor", tensor), ("residual", residual)):
        if not isinstance(value, torch.Tensor):
            raise InvalidArgumentError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if tensor.numel() >= 2**31:
        raise UnsupportedError(f"tensor must have fewer than 2^31 elements, got {tensor.numel()}")
    check_parameter("tensor", tensor)
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
