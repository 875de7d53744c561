"""Memory as it crosses to the core: an address, which no framework has to be known for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Buffer(NamedTuple):
    """Memory that somebody else owns.

    Attributes:
        address: Of the first element; the elements are contiguous.
        numel: Number of elements.
        dtype: "float32", "float64", "float16" or "bfloat16".
    """

    address: int
    numel: int
    dtype: str

    @classmethod
    def of(cls, array: np.ndarray[Any, Any]) -> Buffer:
        """The memory of a contiguous NumPy array, which must outlive its use."""
        return cls(array.ctypes.data, array.size, array.dtype.name)
