"""sparse_allreduce of NumPy and CuPy arrays, and others with their interfaces."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from hvd_sparse.arrays.arrays import Placed, placed
from hvd_sparse.arrays.channels import Channels, Ranks
from hvd_sparse.compression import Compression, GTopK, as_compression
from hvd_sparse.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from hvd_sparse.exchange.reduction import checked_reduction

_DEFAULT = GTopK(density=0.01)


def sparse_allreduce(
    array: Any,
    residual: Any,
    *,
    out: Any = None,
    compression: Compression | type[Compression] = _DEFAULT,
    op: int | None = None,
    name: str | None = None,
    process_set: Any = None,
) -> Any:
    """Averages or sums an array over all ranks, up to the residuals that they keep. Collective.

    For each entry, summed over the P ranks: array + residual before = P * result + residual after
    (for op=Sum: result + residual after). All ranks of a set make their calls in the same order,
    after `hvd.init()` of horovod.torch or horovod.tensorflow.

    Args:
        array: A NumPy array, or, if this build has CUDA, a CuPy array or any other that has
            `__cuda_array_interface__` and a method copy(); contiguous in C order; float64, float32,
            float16 or bfloat16, of any shape; not changed, unless it is `out`.
        residual: The values that this rank has not sent yet: float32, on the device of `array` and
            with as many elements. Zeros at first; updated in place. It shares
            no memory with `array`.
        out: Array to write the result to: contiguous in C order, of the kind, shape, type and
            device of `array`, which it may be; undefined after an error. None: a new array, whose
            fresh memory may take longer than the exchange.
        compression: A class or an instance; its density, sparsifier, collective and wire apply. Its
            warm-up, feedback and local steps do not: a call counts no steps. Default:
            GTopK(density=0.01).
        op: Horovod's Average or Sum. None: Average.
        name: Distinguishes arrays of the same size, and appears in errors.
        process_set: A process set of Horovod that contains this rank. None: all ranks.

    Returns:
        `out`, or a new array of the shape and type of `array`; bitwise equal on all ranks. On a
        device it can be used on the stream of `array`.

    Raises:
        UnavailableError: Horovod is not initialised.
        InvalidArgumentError: An argument lies outside its limits, or differs between ranks.
        UnsupportedError: The op, or the array's type or device, is not supported.
        NonFiniteGradientError: On every rank, if `array` is not finite on one. The finite entries
            are then in the residual.
        ExchangeFailedError: Another rank refused an argument, ended the exchange otherwise, or
            died. The next call builds it anew.
    """
    hvd = _horovod()
    ranks = Ranks.of_process_set(
        hvd, hvd.global_process_set if process_set is None else process_set
    )
    with _channels(hvd).refusing(ranks):
        chosen = as_compression(compression)
        reduction = checked_reduction(hvd, op=hvd.Average if op is None else op)
        ours, kept = placed("array", array), placed("residual", residual)
        _check_residual(kept, ours)
        result = _copied(array) if out is None else out
        output = placed("out", result)
        if out is not None:
            _check_out(out, array, output, ours, kept)
    if out is not None and output.buffer.address != ours.buffer.address:
        out[...] = array
    if output.buffer.numel > 0:
        _channels(hvd).allreduce(
            output.buffer,
            kept.buffer,
            compression=chosen,
            reduction=reduction,
            name=name,
            ranks=ranks,
            device=output.device,
            stream=output.stream,
        )
    return result


def _copied(array: Any) -> Any:
    if not callable(getattr(array, "copy", None)):
        raise UnsupportedError(f"array must have a method copy(), got {type(array).__name__}")
    return array.copy()


def _check_out(out: Any, array: Any, output: Placed, ours: Placed, kept: Placed) -> None:
    for what, wanted, got in (
        ("type", type(array).__name__, type(out).__name__),
        ("shape", array.shape, out.shape),
        ("dtype", ours.buffer.dtype, output.buffer.dtype),
        ("device", ours.device, output.device),
    ):
        if got != wanted:
            raise InvalidArgumentError(f"out must have {what} {wanted}, as array has, got {got}")
    if output.buffer.overlaps(kept.buffer):
        raise InvalidArgumentError("out must not share memory with residual")
    if output.buffer.address != ours.buffer.address and output.buffer.overlaps(ours.buffer):
        raise InvalidArgumentError("out must be array, or share no memory with it")


@functools.cache
def _channels(hvd: ModuleType) -> Channels:
    return Channels()


def _horovod() -> ModuleType:
    """Returns the module of Horovod that this process has initialised; each has its own world."""
    for name in ("horovod.torch", "horovod.tensorflow"):
        module = sys.modules.get(name)
        if module is not None and module.is_initialized():
            return module
    raise UnavailableError(
        "Horovod is not initialised: call hvd.init() of horovod.torch or horovod.tensorflow first"
    )


def _check_residual(kept: Placed, ours: Placed) -> None:
    if kept.buffer.dtype != "float32":
        raise InvalidArgumentError(f"residual must be float32, got {kept.buffer.dtype}")
    if kept.device != ours.device:
        raise InvalidArgumentError(
            f"residual must be on '{ours.device}', as array is, got '{kept.device}'"
        )
    if kept.buffer.numel != ours.buffer.numel:
        raise InvalidArgumentError(
            f"residual must have as many elements as array ({ours.buffer.numel}), got "
            f"{kept.buffer.numel}"
        )
    if kept.buffer.overlaps(ours.buffer):
        raise InvalidArgumentError("residual must not share memory with array")
