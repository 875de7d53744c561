"""Times selection beside a copy and the ways of torch, CUB, CuPy and papers, on one device.

Several sets of memory take turns, so that no call finds its input in a cache: each has a gradient
of random numbers, its negative, residuals, and memory to copy to; at 256 million entries all that
takes some 16 GB. A call adds the gradient to the residual, and the next one on the same set its
negative: entries below the threshold come and go, and the others are selected every time, so that
all passes do the same work. All other ways work on the gradient alone.

Each is launched several times in a row between two of CUDA's events, so that the device's work is
timed, with its launches, and not Python's speed of launching. This package's selections also wait
for the device, and for their block in memory of the CPU. On the CPU, which has neither events
nor streams, the clock and the selection are the CPU's: that only shows that the benchmark works.

Every result is checked before the first step and after the last, outside the timing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from cub_pieces import Cub
from device_blocks import Piece, time_all
from published import PUBLISHED, Method, exact_top_k
from reporting import Row
from selection_sets import Memory, Ours, pass_work, select_work, stream_of

from hvd_sparse.errors import UnavailableError

TURN_BYTES = 1 << 30  # gradients and residuals of all sets together, unless two sets are larger
MOST_SETS = 16
TOP_K = "torch.topk"


@dataclass(frozen=True)
class Rotating:
    """A way of selecting or copying, for all sets.

    Attributes:
        name: Name in the table.
        enqueue: For each set, launches the work on the current stream.
        check: For each set, does the work and returns true if the result is right.
        bytes_moved: Bytes that it must read and write in memory; 0 if that is of no interest.
    """

    name: str
    enqueue: list[Callable[[], object]]
    check: list[Callable[[], bool]]
    bytes_moved: int = 0


def ours(sets: list[Memory]) -> Iterator[Rotating]:
    """Yields this package's ways."""
    numel = sets[0].copied.numel()
    for name, make, kept in (
        ("error feedback and taking", pass_work, 0),
        ("whole selection", select_work, 1),
    ):
        works = [Ours(make, memory, kept=kept) for memory in sets]
        run, check = [one.run for one in works], [one.check for one in works]
        yield Rotating(name, run, check, 12 * numel)


def of_torch(sets: list[Memory]) -> Iterator[Rotating]:
    """Yields a copy, torch's top-k, and the published methods, without error feedback."""

    def copy(memory: Memory) -> torch.Tensor:
        return memory.copied.copy_(memory.gradients[0])

    def copied(memory: Memory) -> bool:
        return torch.equal(copy(memory), memory.gradients[0])

    def select(method: Method, memory: Memory) -> torch.Tensor:
        u = memory.gradients[0]
        indices = method(u, memory.k)
        u[indices]
        return indices

    def selects_right(method: Method, memory: Memory) -> bool:
        return memory.holds_largest(select(method, memory))

    enqueue, check = ([partial(one, memory) for memory in sets] for one in (copy, copied))
    yield Rotating("copy", enqueue, check, 8 * sets[0].copied.numel())
    for title, method in PUBLISHED.items():
        name = TOP_K if method is exact_top_k else title
        enqueue = [partial(select, method, memory) for memory in sets]
        check = [partial(selects_right, method, memory) for memory in sets]
        yield Rotating(name, enqueue, check)


def of_cub(sets: list[Memory], device: str) -> Iterator[Rotating | Row]:
    """Yields CUB's compaction with a known threshold, and its top-k, if they are available."""
    names = "cub::DeviceSelect, indices alone", "cub::DeviceTopK"
    try:
        if device == "cpu":
            raise UnavailableError("it needs a GPU")
        cub = Cub.on(device)
    except UnavailableError as error:
        yield from (absent(name, str(error)) for name in names)
        return

    def rotating(name: str, pieces: list[Any]) -> Rotating:
        def check(piece: Any, memory: Memory) -> bool:
            piece.enqueue(stream_of(device))
            return memory.holds(piece.taken())

        both = zip(pieces, sets, strict=True)
        enqueue = [lambda one=one: one.enqueue(stream_of(device)) for one in pieces]
        return Rotating(name, enqueue, [partial(check, *each) for each in both])

    selecting = [cub.select(memory.gradients[0], memory.threshold) for memory in sets]
    yield rotating(f"{names[0]} ({cub.version})", selecting)
    if not cub.has_top_k:
        yield absent(names[1], f"CUB {cub.version} has none")
        return
    top_k = [cub.top_k(memory.gradients[0], memory.k) for memory in sets]
    yield rotating(f"{names[1]} ({cub.version})", top_k)


def of_cupy(sets: list[Memory], device: str) -> Iterator[Rotating | Row]:
    """Yields CuPy's compaction with a known threshold, if CuPy is available."""
    name = "cupy.flatnonzero(abs(u) > threshold), gather"
    try:
        if device == "cpu":
            raise UnavailableError("it needs a GPU")
        import cupy
    except (ImportError, UnavailableError) as error:
        yield absent(name, str(error))
        return
    arrays = [cupy.from_dlpack(memory.gradients[0]) for memory in sets]

    def select(u: Any, memory: Memory) -> tuple[Any, Any]:
        with cupy.cuda.ExternalStream(stream_of(device)):
            indices = cupy.flatnonzero(cupy.abs(u) > np.float32(memory.threshold))
            return indices, u[indices]

    def check(u: Any, memory: Memory) -> bool:
        return memory.holds(torch.from_dlpack(select(u, memory)[0]))

    both = list(zip(arrays, sets, strict=True))
    enqueue, checks = ([partial(one, *each) for each in both] for one in (select, check))
    yield Rotating(name, enqueue, checks)


def absent(name: str, why: str) -> Row:
    """Returns a row for something that is not available."""
    return Row(name, None, {"of a copy's": f"not there: {why}"})


def measure_selection(
    numel: int, density: float, device: str, steps: int
) -> tuple[list[Row], bool]:
    """Returns rows of all ways, and true if all results were right.

    Args:
        numel: Number of entries of a gradient.
        density: Fraction of them that is selected.
        device: Such as "cuda:0", or "cpu".
        steps: Number of timed steps.
    """
    with nullcontext() if device == "cpu" else torch.cuda.device(device):
        return _measure_here(numel, density, device, steps)


def _measure_here(numel: int, density: float, device: str, steps: int) -> tuple[list[Row], bool]:
    count = min(MOST_SETS, max(2, math.ceil(TURN_BYTES / (8 * numel))))
    sets = [Memory(numel, density, device) for _ in range(count)]
    found = [*of_torch(sets), *ours(sets), *of_cub(sets, device), *of_cupy(sets, device)]
    ways = [one for one in found if isinstance(one, Rotating)]
    verified = all(check() for way in ways for check in way.check)
    pieces = []
    for way in ways:
        turns = cycle(way.enqueue)
        pieces.append(Piece(way.name, lambda turns=turns: next(turns)(), way.bytes_moved))
    timings = time_all(pieces, device, steps)
    verified &= all(check() for way in ways for check in way.check)

    copy = 8 * numel / timings["copy"].median
    k = statistics.fmean(memory.k for memory in sets)
    rows = []
    for way in found:
        if isinstance(way, Row):
            rows.append(way)
            continue
        timing = timings[way.name]
        facts: dict[str, float | int | str] = {"us": 1e3 * timing.median}
        if way.bytes_moved > 0:
            facts["GB/s"] = 1e-6 * way.bytes_moved / timing.median
            facts["of a copy's"] = way.bytes_moved / timing.median / copy
        facts["x topk"] = timing.median / timings[TOP_K].median
        facts["sets"], facts["k"] = count, k
        rows.append(Row(way.name, timing, facts))
    return rows, verified
