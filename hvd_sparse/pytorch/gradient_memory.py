"""Checks that averages can be written to the memory of gradients.

A step that is committed is applied by all ranks, so writing an average must not fail on one of
them, nor overwrite another average.
"""

from __future__ import annotations

import math
from bisect import bisect
from typing import NamedTuple

import torch


class Extent(NamedTuple):
    """The memory of a strided tensor.

    Attributes:
        begin: Address of its first entry, in bytes.
        end: The address behind its last entry.
        itemsize: Bytes of an entry.
        dimensions: Stride, in entries, and size of each dimension longer than 1, in order of
            stride. A contiguous tensor has one.
    """

    begin: int
    end: int
    itemsize: int
    dimensions: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Extent:
        """Returns the extent of a non-empty tensor. Called for each gradient in each step."""
        begin, itemsize = tensor.data_ptr(), tensor.element_size()
        if tensor.is_contiguous():
            numel = tensor.numel()
            return cls(begin, begin + itemsize * numel, itemsize, ((1, numel),))
        both = zip(tensor.stride(), tensor.shape, strict=True)
        dimensions = tuple(sorted((stride, size) for stride, size in both if size > 1))
        last = sum(stride * (size - 1) for stride, size in dimensions)
        return cls(begin, begin + itemsize * (last + 1), itemsize, dimensions)

    @property
    def folds(self) -> bool:
        """True if two entries share memory, as in an expanded tensor."""
        reach = 0  # of the previous dimensions, in entries
        for stride, size in self.dimensions:
            if stride == 0:
                return True
            if stride <= reach:  # they may interleave
                addresses = self._addresses()
                return len(set(addresses.tolist())) < addresses.numel()
            reach += stride * (size - 1)
        return False

    def meets(self, other: Extent) -> bool:
        """True if an entry shares memory with an entry of another tensor."""
        if self.end <= other.begin or other.end <= self.begin:
            return False
        if self.itemsize != other.itemsize or (self._is_dense and other._is_dense):
            return True
        return bool(torch.isin(self._addresses(), other._addresses()).any())

    @property
    def _is_dense(self) -> bool:
        """True if the entries fill their memory without gaps, in any order."""
        return self.end - self.begin == self.itemsize * math.prod(n for _, n in self.dimensions)

    def _addresses(self) -> torch.Tensor:
        addresses = torch.tensor([self.begin], device="cpu")
        for stride, size in self.dimensions:
            steps = torch.arange(size, device="cpu") * (stride * self.itemsize)
            addresses = (addresses[:, None] + steps).view(-1)
        return addresses


class MemoryInUse:
    """The memory of one step's gradients. Two gradients must not share any."""

    def __init__(self) -> None:
        self._extents: dict[str, Extent] = {}
        self._sorted: list[tuple[int, str]] = []  # by address
        self._interleaved = False

    def claim(self, name: str, extent: Extent) -> str | None:
        """Records a gradient's memory, replacing what was recorded under its name.

        Args:
            name: The name of its parameter.
            extent: Its memory.

        Returns:
            The name of a gradient that shares memory with it; None if there is none.
        """
        former = self._extents.pop(name, None)
        if former is not None:
            self._sorted.remove((former.begin, name))
        index = bisect(self._sorted, (extent.begin, name))
        # Unless some interleave, only neighbours can overlap.
        near = self._sorted if self._interleaved else self._sorted[max(0, index - 1) : index + 1]
        for _, other in near:
            theirs = self._extents[other]
            if extent.begin < theirs.end and theirs.begin < extent.end:
                if extent.meets(theirs):
                    return other
                self._interleaved = True
        self._extents[name] = extent
        self._sorted.insert(index, (extent.begin, name))
        return None

    def clear(self) -> None:
        """Prepares for the next step."""
        self._extents.clear()
        self._sorted.clear()
        self._interleaved = False
