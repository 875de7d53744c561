"""Memory as passed to the core: an address, which depends on no framework."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}  # of an element


class Buffer(NamedTuple):
    """Memory that another object owns.

    Attributes:
        address: Address of the first element; the elements are contiguous.
        numel: Number of elements.
        dtype: "float32", "float64", "float16" or "bfloat16".
    """

    address: int
    numel: int
    dtype: str

    @property
    def end(self) -> int:
        """The address behind the last element."""
        return self.address + BYTES[self.dtype] * self.numel

    def overlaps(self, other: Buffer) -> bool:
        """Returns true if an element shares memory with an element of another buffer."""
        return self.address < other.end and other.address < self.end

    @classmethod
    def of(cls, array: np.ndarray[Any, Any]) -> Buffer:
        """Returns the memory of a contiguous NumPy array, which must outlive its use."""
        return cls(array.ctypes.data, array.size, array.dtype.name)
