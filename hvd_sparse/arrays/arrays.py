"""Finds the memory of NumPy and CuPy arrays, and others with their interfaces, for the core."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hvd_sparse import _core
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.places.gpus import require_gpus

_DTYPES = ("float64", "float32", "float16", "bfloat16")
_LEGACY_DEFAULT_STREAM = 1  # in __cuda_array_interface__, and in CUDA


class Placed(NamedTuple):
    """An array's memory, and its device.

    Attributes:
        buffer: The array's elements, in C order.
        device: The array's device: "cpu", or "cuda:0" and the like.
        stream: On a device, the stream whose queued work is the last to use the array.
    """

    buffer: Buffer
    device: str = "cpu"
    stream: int = 0


def placed(name: str, array: Any) -> Placed:
    """Returns the memory and the device of an array.

    Args:
        name: Name of the argument, for errors.
        array: A NumPy array, or one with `__cuda_array_interface__` (CuPy's, Numba's); contiguous
            in C order, writable, of fewer than 2^31 elements; float64, float32, float16 or
            bfloat16.

    Raises:
        InvalidArgumentError: It is no such array.
        UnsupportedError: Its type or size is not one of these, or this build has no CUDA.
    """
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _on_a_device(name, interface)
    if not isinstance(array, np.ndarray):
        raise InvalidArgumentError(
            f"{name} must be a NumPy array, or have __cuda_array_interface__, got "
            f"{type(array).__name__}"
        )
    _check(name, array.dtype.name, array.size)
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise InvalidArgumentError(f"{name} must be contiguous in C order, and writable")
    return Placed(Buffer.of(array))


def _on_a_device(name: str, interface: dict[str, Any]) -> Placed:
    dtype = np.dtype(interface["typestr"])
    shape = interface["shape"]
    address, read_only = interface["data"]
    numel = int(np.prod(shape, dtype=np.int64))
    _check(name, dtype.name if dtype.isnative else interface["typestr"], numel)
    require_gpus(f"{name} is on a GPU")
    strides = interface.get("strides")
    if read_only or interface.get("mask") is not None or not _contiguous(shape, strides, dtype):
        raise InvalidArgumentError(
            f"{name} must be contiguous in C order, and writable, and have no mask"
        )
    device = _core.cuda_device_of(address) if numel else 0
    stream = interface.get("stream") or _LEGACY_DEFAULT_STREAM
    return Placed(Buffer(address, numel, dtype.name), f"cuda:{device}", stream)


def _contiguous(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: np.dtype[Any]
) -> bool:
    """Returns true if these are the strides of C order; None stands for them."""
    expected = dtype.itemsize
    for length, stride in zip(reversed(shape), reversed(strides or ()), strict=False):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True


def _check(name: str, dtype: str, numel: int) -> None:
    if dtype not in _DTYPES:
        raise UnsupportedError(
            f"{name} is {dtype}; a sparse exchange takes {', '.join(sorted(_DTYPES))}"
        )
    if numel >= 2**31:
        raise UnsupportedError(f"{name} must have fewer than 2^31 elements, got {numel}")
