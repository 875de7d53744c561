"""Arrays on the device under test: NumPy's on the CPU, CuPy's on a GPU.

The memory of an emulated GPU (tests/emulated_core.py) is CPU memory, so its arrays are NumPy's,
too.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import numpy as np

from hvd_sparse import _core
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.places.gpus import problem_of_gpus

CPU, GPU = "cpu", "cuda:0"
DTYPES = ("float32", "float64", "float16", "bfloat16")


@functools.cache
def problem_of_gpu() -> str:
    """Returns why nothing can be tested on a GPU here; empty if it can."""
    problem = problem_of_gpus()
    if problem is not None:
        return f"this build {problem}"
    if not is_emulated() and importlib.util.find_spec("cupy") is None:
        return "there is no CuPy"
    return ""


@functools.cache
def is_emulated() -> bool:
    """Returns true if the GPU, which must exist, is emulated."""
    return _core.cuda_devices() == ["emulated"]


class DeviceArray:
    """A flat array in memory of a device.

    Args:
        device: `CPU` or `GPU`.
        values: Initial values, which are copied.
        dtype: Type of the elements. A bfloat16 is a float32 without the lower half of its bits.
    """

    def __init__(self, device: str, values: np.ndarray, dtype: str = "float32") -> None:
        self.dtype = dtype
        self._on_gpu = device == GPU and not is_emulated()
        if dtype == "bfloat16":
            values = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        else:
            values = values.astype(dtype)
        self._array: Any = self._module().array(values)

    @property
    def buffer(self) -> Buffer:
        """The array's memory as a Buffer of the core."""
        address = self._array.data.ptr if self._on_gpu else self._array.ctypes.data
        numel = self._array.size
        return Buffer(address if numel else 0, numel, self.dtype)  # empty memory has no address

    @property
    def stream(self) -> int:
        """A stream on which the array's values are, or will be, complete."""
        return self._module().cuda.get_current_stream().ptr if self._on_gpu else 0

    def numpy(self) -> np.ndarray:
        """Returns the values once the stream has computed them; bfloat16 as float32.

        All other types are kept. On the CPU, the result is the memory itself if NumPy has the type.
        """
        values = self._module().asnumpy(self._array) if self._on_gpu else self._array
        if self.dtype == "bfloat16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values

    def _module(self) -> Any:
        if not self._on_gpu:
            return np
        import cupy

        return cupy


def wait_for_all(device: str) -> None:
    """Waits until a device has finished all work given to it."""
    if device == GPU and not is_emulated():
        import cupy

        cupy.cuda.Device().synchronize()


class OnADevice:
    """A NumPy array that is presented as a device's, by `__cuda_array_interface__`.

    Args:
        array: The array that provides the memory; an emulated GPU treats it as its own.
        changes: Changes to the interface.
    """

    def __init__(self, array: np.ndarray, **changes: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "typestr": array.dtype.str,
            "shape": array.shape,
            "data": (array.ctypes.data, False),
            "version": 3,
            **changes,
        }

    def copy(self) -> OnADevice:
        """Returns a copy of the array."""
        return OnADevice(self.array.copy())
