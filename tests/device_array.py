"""Arrays where a test wants them: NumPy's on the CPU, CuPy's on a GPU.

The memory of an emulated GPU (tests/emulated_core.py) is that of the CPU, and so its arrays are
NumPy's, too.
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
    """Why nothing can be tested on a GPU here; empty where it can."""
    problem = problem_of_gpus()
    if problem is not None:
        return f"this build {problem}"
    if not is_emulated() and importlib.util.find_spec("cupy") is None:
        return "there is no CuPy"
    return ""


@functools.cache
def is_emulated() -> bool:
    """Whether the GPU is an emulated one; there must be one."""
    return _core.cuda_devices() == ["emulated"]


class DeviceArray:
    """A flat array in memory of a device.

    Args:
        device: `CPU` or `GPU`.
        values: What it holds at first; a copy is made.
        dtype: Of its elements. bfloat16 are float32 less the second half of their bits.
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
        """Its memory, as the core takes it."""
        address = self._array.data.ptr if self._on_gpu else self._array.ctypes.data
        numel = self._array.size
        return Buffer(address if numel else 0, numel, self.dtype)  # no memory lies anywhere

    @property
    def stream(self) -> int:
        """That is done with it, or will be."""
        return self._module().cuda.get_current_stream().ptr if self._on_gpu else 0

    def numpy(self) -> np.ndarray:
        """Its values, when its stream has come here: bfloat16 as float32, all others in their type.

        On the CPU it is the memory itself, where the type is NumPy's.
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
    """Until a device has done whatever it was given."""
    if device == GPU and not is_emulated():
        import cupy

        cupy.cuda.Device().synchronize()


class OnADevice:
    """An array of NumPy's as a device's are, by `__cuda_array_interface__`.

    Args:
        array: Whose memory it is; an emulated GPU takes it for its own.
        changes: To the interface.
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
        """Another one, with the same values."""
        return OnADevice(self.array.copy())
