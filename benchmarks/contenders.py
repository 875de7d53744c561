"""Contenders: alternative ways of a rank's work on its gradients before and after an exchange.

A contender works on all layers of a model. It takes a gradient for each, works in one or more
phases, of which only the calls are timed, and can check its result.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from published import Method

from hvd_sparse import _core, _core_testing
from hvd_sparse.compression.sparsifiers import OneSign, RandomK, Sparsifier
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.planning import plan

Call = Callable[[], object]
Taken = tuple[torch.Tensor, torch.Tensor]  # indices (int64, ascending), values

# The mark of an entry that was delivered; see csrc/base/sparse_block.h.
SURVIVED = np.int32(-(2**31))

ALIGNMENT = 16  # entries: a cache line
ROUNDING = 1e-6  # tolerance for bounds that are fractions of k


@dataclass(frozen=True)
class Size:
    """A model of equal layers.

    Attributes:
        numel: Number of entries of a layer.
        layers: Number of layers.
        density: Fraction of each layer that is selected.
        device: Device of residuals and gradients.
    """

    numel: int
    layers: int
    density: float
    device: str = "cpu"

    @property
    def k(self) -> int:
        """Number of entries to select in each layer."""
        return plan.entries_to_send(self.numel, self.density)

    def slab(self) -> torch.Tensor:
        """Returns zeroed memory for all layers, one per row; each row begins at a cache line."""
        padded = -(-self.numel // ALIGNMENT) * ALIGNMENT
        return torch.zeros(self.layers, padded, device=self.device)[:, : self.numel]

    def finish(self) -> None:
        """Waits for the device, which may still be working when a call has returned."""
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)


def buffer(tensor: torch.Tensor) -> Buffer:
    """Returns the memory of a contiguous tensor, as the core takes it."""
    assert tensor.is_contiguous()
    return Buffer(tensor.data_ptr(), tensor.numel(), str(tensor.dtype).removeprefix("torch."))


class Contender:
    """Base of all contenders; it only adds the gradient to the residual.

    Attributes:
        name: Name in the table.
        size: Size of the model.
        slabs: Memory, each from Size.slab(); assigned from outside. The first holds the residuals.
        verified: True if all checked results so far were right.
    """

    slabs_needed: ClassVar[int] = 1

    def __init__(self, name: str, size: Size) -> None:
        self.name = name
        self.size = size
        self.slabs: list[torch.Tensor] = []
        self.verified = True
        self._gradients: Sequence[torch.Tensor] = []

    @property
    def residuals(self) -> tuple[torch.Tensor, ...]:
        """The layers' residuals, flat."""
        return self.slabs[0].unbind()

    def run(
        self, gradients: Sequence[torch.Tensor], *, pause: float = 0, check: bool = False
    ) -> float:
        """Works on these gradients; returns the seconds of all calls.

        Args:
            gradients: One gradient per layer.
            pause: Seconds to sleep first: threads of torch's pool keep spinning after their last
                work.
            check: True to check the result.
        """
        self._receive(gradients)
        checked = list(zip(self.residuals, self._gradients, strict=True)) if check else []
        expected = [
            residual + self._added(layer, gradient)
            for layer, (residual, gradient) in enumerate(checked)
        ]
        time.sleep(pause)
        seconds = 0.0
        for calls in self._phases():
            self.size.finish()
            start = time.perf_counter()
            for call in calls:
                call()
            self.size.finish()
            seconds += time.perf_counter() - start
        self.verified &= all(self._is_right(layer, u) for layer, u in enumerate(expected))
        return seconds

    def counts(self) -> list[int]:
        """Returns the number of entries that the last run selected in each layer."""
        return []

    def _added(self, layer: int, gradient: torch.Tensor) -> torch.Tensor:
        """Returns what a run adds to a layer's residual, for this gradient."""
        del layer
        return gradient

    def _receive(self, gradients: Sequence[torch.Tensor]) -> None:
        self._gradients = gradients

    def _phases(self) -> Iterator[Iterable[Call]]:
        """Yields lists of calls. Only the calls are timed, not making the lists."""
        yield [
            partial(residual.add_, gradient)
            for residual, gradient in zip(self.residuals, self._gradients, strict=True)
        ]

    def _is_right(self, layer: int, u: torch.Tensor) -> bool:
        """Returns true if the result is right for u, the layer's residual after error feedback."""
        return same_bits(self.residuals[layer], u)


class OwnGradients(Contender):
    """Copies the gradients first, untimed, because its work overwrites them."""

    slabs_needed = 2

    def _receive(self, gradients: Sequence[torch.Tensor]) -> None:
        for own, gradient in zip(self.slabs[1], gradients, strict=True):
            own.copy_(gradient)
        self._gradients = self.slabs[1].unbind()


class AddAndZero(OwnGradients):
    """The least cost of a whole step: adds the gradients, and zeroes them afterwards."""

    def _phases(self) -> Iterator[Iterable[Call]]:
        yield from super()._phases()
        yield [gradient.zero_ for gradient in self._gradients]

    def _is_right(self, layer: int, u: torch.Tensor) -> bool:
        return super()._is_right(layer, u) and not self._gradients[layer].any()


class Selecting(Contender, ABC):
    """Base of the contenders that select.

    Attributes:
        bounds: Least and most entries of a layer, as multiples of k.
        largest: True if these must be the largest.
    """

    bounds: tuple[float, float] = (0, math.inf)
    largest = True

    @abstractmethod
    def taken(self, layer: int) -> Taken:
        """Returns the last run's selection."""

    def is_bounded(self, count: int, non_zeros: int) -> bool:
        """Returns true if `count` is a valid number of entries; zeros need not be selected."""
        low, high = (bound * self.size.k for bound in self.bounds)
        return min(low, non_zeros) - ROUNDING <= count <= high + ROUNDING

    def _is_right(self, layer: int, u: torch.Tensor) -> bool:
        indices, values = self.taken(layer)
        return self.is_bounded(len(indices), int(u.count_nonzero())) and is_right(
            u, self.residuals[layer], indices, values, largest=self.largest
        )


class Core(Selecting):
    """Selection by this package: error feedback, and the block."""

    def __init__(self, sparsifier: Sparsifier, size: Size, *, name: str = "") -> None:
        super().__init__(name or sparsifier.name, size)
        self.bounds = sparsifier.bounds
        self.largest = not isinstance(sparsifier, RandomK | OneSign)
        self.selectors = [
            _core_testing.Selector(
                sparsifier.name, sparsifier.options, numel=size.numel, k=size.k, device=size.device
            )
            for _ in range(size.layers)
        ]
        self._states = [torch.zeros(4) for _ in range(size.layers)]

    def taken(self, layer: int) -> Taken:
        block = self.selectors[layer].block
        indices, values = torch.from_numpy(block.indices()), torch.from_numpy(block.values())
        return indices.long().to(self.size.device), values.to(self.size.device)

    def counts(self) -> list[int]:
        return [selector.block.count for selector in self.selectors]

    def _phases(self) -> Iterator[Iterable[Call]]:
        parts = zip(self.selectors, self._gradients, self.residuals, self._states, strict=True)
        yield [
            partial(
                selector.select,
                buffer(gradient),
                decay=1.0,
                residual=buffer(residual),
                state=buffer(state),
                **self._options_of(layer),
            )
            for layer, (selector, gradient, residual, state) in enumerate(parts)
        ]

    def _options_of(self, layer: int) -> dict[str, Any]:
        """Returns further arguments of a layer's selector."""
        del layer
        return {"scale": 1.0}


class WithMomentum(Core):
    """Selection with momentum in front: each entry's velocity is updated, and added to residuals.

    Reads and writes 20 bytes of an entry, where error feedback alone does 12.
    """

    slabs_needed = 2
    momentum = 0.9

    def __init__(self, sparsifier: Sparsifier, size: Size) -> None:
        super().__init__(sparsifier, size, name=f"{sparsifier.name} with momentum")
        self._expected: dict[int, torch.Tensor] = {}  # the velocities of the layers

    def _options_of(self, layer: int) -> dict[str, Any]:
        velocity = buffer(self.slabs[1][layer])
        return {"scale": 1 - self.momentum, "velocity": velocity, "momentum": self.momentum}

    def _added(self, layer: int, gradient: torch.Tensor) -> torch.Tensor:
        self._expected[layer] = (
            self.momentum * self.slabs[1][layer] + (1 - self.momentum) * gradient
        )
        return self._expected[layer]

    def _is_right(self, layer: int, u: torch.Tensor) -> bool:
        velocity = self.slabs[1][layer]
        return super()._is_right(layer, u) and same_bits(velocity, self._expected.pop(layer))


class LocalStep(OwnGradients, Core):
    """Selection, and the work after the exchange, in which a lone rank delivers all entries."""

    def _phases(self) -> Iterator[Iterable[Call]]:
        yield from super()._phases()
        calls: list[Call] = []
        parts = zip(self.selectors, self._gradients, self.residuals, strict=True)
        for selector, gradient, residual in parts:
            own = selector.block
            total = _core.Block(own.indices() | SURVIVED, own.values())
            into, rest, device = buffer(gradient), buffer(residual), self.size.device
            calls += [
                partial(_core_testing.settle, own, total, rest, device=device),
                partial(_core_testing.scatter, total, 1.0, into, rest, device=device),
            ]
        yield calls

    def _is_right(self, layer: int, u: torch.Tensor) -> bool:
        indices, values = self.taken(layer)
        total = torch.zeros_like(u).index_put_((indices,), values)
        return super()._is_right(layer, u) and same_bits(self._gradients[layer], total)


class Published(Selecting):
    """Error feedback in place, a published method, and a gather of the values.

    Selected entries are removed from the residual untimed.
    """

    def __init__(self, name: str, method: Method, size: Size) -> None:
        super().__init__(name, size)
        self._method = method
        self._taken: list[Taken] = []

    def taken(self, layer: int) -> Taken:
        indices, values = self._taken[layer]
        order = indices.argsort()
        return indices[order], values[order]

    def counts(self) -> list[int]:
        return [len(indices) for indices, _ in self._taken]

    def _phases(self) -> Iterator[Iterable[Call]]:
        self._taken.clear()
        yield [partial(self._select, layer) for layer in range(self.size.layers)]
        for residual, (indices, _) in zip(self.residuals, self._taken, strict=True):
            residual[indices] = 0

    def _select(self, layer: int) -> None:
        u = self.residuals[layer].add_(self._gradients[layer])
        indices = self._method(u, self.size.k)
        self._taken.append((indices, u[indices]))


def is_right(
    u: torch.Tensor,
    residual: torch.Tensor,
    indices: torch.Tensor,
    values: torch.Tensor,
    *,
    largest: bool,
) -> bool:
    """Returns true if exactly these ascending entries, bit for bit, were removed from u.

    With `largest`, also none of the remaining entries may exceed a removed one.
    """
    back = residual.clone()
    back[indices] = values
    return bool(
        (indices.diff() > 0).all()
        and not residual[indices].any()
        and same_bits(back, u)
        and (not largest or not len(values) or values.abs().min() >= residual.abs().max())
    )


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns true if two float32 tensors are equal bit for bit."""
    return torch.equal(a.view(torch.int32), b.view(torch.int32))
