"""Times what a step does to blocks that stay on a GPU, with CUDA's events on torch's stream.

Each piece is given to the stream several times in a row between two events, so that what is timed
is the device's work, with its launches, and not how fast Python asks for it. Ours and torch's take
turns. Merges and top-k repeat the same. A pass, or a step, adds a gradient to the residual, and the
next one takes it off again: what does not exceed the threshold comes and goes, and what does is
taken every time, so that all have the same to do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import torch
from blocks import Pair, holds
from contenders import SURVIVED, buffer
from reporting import Row, Timing

from hvd_sparse import _core

IN_A_ROW = 8  # times a piece is given to the stream between two events
WARM_UP = 5
MERGE_LIMIT_US = 25.0  # aim for merge and top-k of two blocks of 25,600
PASS_LIMIT = 0.8  # aim for the pass: this share of a copy's bandwidth
STEP_LIMIT = 1.5  # aim for the local step: this many times what memory alone takes


@dataclass(frozen=True)
class Piece:
    """What is timed.

    Attributes:
        name: In the table.
        give: Gives the current stream its work.
        bytes_moved: That memory must read and write for it; 0 where that says nothing.
    """

    name: str
    give: Callable[[], object]
    bytes_moved: int = 0


def seconds_of(piece: Piece, device: str) -> float:
    """What one of IN_A_ROW takes the device, by its events."""
    with torch.cuda.device(device):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(IN_A_ROW):
            piece.give()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / IN_A_ROW


def time_all(pieces: list[Piece], device: str, steps: int) -> dict[str, Timing]:
    """Lets the pieces take turns, in shuffled order."""
    seconds: dict[str, list[float]] = {piece.name: [] for piece in pieces}
    for step in range(WARM_UP + steps):
        for piece in random.sample(pieces, len(pieces)):
            took = seconds_of(piece, device)
            if step >= WARM_UP:
                seconds[piece.name].append(took)
    return {name: Timing.of(all_) for name, all_ in seconds.items()}


def measure_merge(block: int, numel: int, device: str, steps: int) -> tuple[list[Row], bool]:
    """Merging two blocks and keeping the largest entries, beside torch.topk of as many values.

    Args:
        block: Entries of each block.
        numel: Entries of the gradient that they belong to.
        device: Such as "cuda:0".
        steps: Timed.
    """
    pair = Pair.drawn(block, numel, np.random.default_rng(1))
    own, theirs = (_core.Block(b.indices, b.values) for b in (pair.own, pair.theirs))
    work = _core.merge_work(own, theirs, k=block, device=device)
    stream = torch.cuda.current_stream(device).cuda_stream
    values = torch.from_numpy(pair.union.values).to(device)
    names = "merge and top-k", f"torch.topk of {len(values):,} values"
    pieces = [
        Piece(names[0], lambda: work.give(stream)),
        Piece(names[1], lambda: torch.topk(values.abs(), block)),
    ]
    timings = time_all(pieces, device, steps)
    rows = [
        Row(name, timings[name], {"us": 1e3 * timings[name].median, "aim, us": limit})
        for name, limit in zip(names, (MERGE_LIMIT_US, ""), strict=True)
    ]
    return rows, holds(work.fetch(), pair.kept)


def measure_pass(numel: int, density: float, device: str, steps: int) -> tuple[list[Row], bool]:
    """Error feedback and taking in one pass, and a whole selection, beside a copy and torch.topk.

    Args:
        numel: Entries of the gradient.
        density: Fraction of it that is taken.
        device: Such as "cuda:0".
        steps: Timed.
    """
    k = max(1, int(numel * density))
    gradient = torch.randn(numel, device=device)
    gradients = (gradient, -gradient)
    residuals = [torch.zeros(numel, device=device) for _ in range(2)]
    copied = torch.empty_like(gradient)
    threshold = float(gradient.abs().kthvalue(numel - k).values)
    stream = torch.cuda.current_stream(device).cuda_stream
    passing = [
        _core.pass_work(
            buffer(one), buffer(residuals[0]), threshold=threshold, capacity=k, device=device
        )
        for one in gradients
    ]
    selecting = [
        _core.select_work(buffer(one), buffer(residuals[1]), k=k, device=device)
        for one in gradients
    ]
    verified = True
    for works, residual in zip((passing, selecting), residuals, strict=True):
        verified &= takes_right(works[0], gradient, residual, k, stream)
        residual.zero_()
    passes, selections = cycle(passing), cycle(selecting)
    pieces = [
        Piece("copy", lambda: copied.copy_(gradient), 8 * numel),
        Piece("error feedback and taking", lambda: next(passes).give(stream), 12 * numel),
        Piece("whole selection", lambda: next(selections).give(stream), 12 * numel),
        Piece("torch.topk", lambda: torch.topk(gradient.abs(), k)),
    ]
    timings = time_all(pieces, device, steps)
    copy = 8 * numel / timings["copy"].median
    rows = []
    for piece in pieces:
        timing = timings[piece.name]
        facts: dict[str, float | int | str] = {"us": 1e3 * timing.median}
        if piece.bytes_moved > 0:
            facts["GB/s"] = 1e-6 * piece.bytes_moved / timing.median
            facts["of a copy's"] = piece.bytes_moved / timing.median / copy
        if piece.give is pieces[1].give:
            facts["aim"] = PASS_LIMIT
        facts["x topk"] = timing.median / timings["torch.topk"].median
        rows.append(Row(piece.name, timing, facts))
    return rows, verified


def measure_step(
    numel: int, layers: int, density: float, device: str, steps: int
) -> tuple[list[Row], bool]:
    """The whole local step of a model: error feedback, selection, settling, writing.

    Beside what memory alone allows: adding gradients to residuals and zeroing them, in two launches
    of torch's for all layers together. Layers of which one or two entries are selected miss their
    thresholds in most steps, as they do in training, and so take the exact top-k.

    Args:
        numel: Entries of the model.
        layers: Of a geometric series of sizes, as models have them; each is a segment.
        density: Fraction that is selected.
        device: Such as "cuda:0".
        steps: Timed.
    """
    numels = layers_of(numel, layers)
    ks = [max(1, int(one * density)) for one in numels]
    gradient = torch.randn(numel, device=device)
    gradients = (gradient, -gradient)
    outputs, residual, rest = (torch.zeros(numel, device=device) for _ in range(3))
    stream = torch.cuda.current_stream(device).cuda_stream
    stepping = [
        _core.step_work(
            [buffer(part) for part in one.split(numels)],
            buffer(residual),
            [buffer(part) for part in outputs.split(numels)],
            ks=ks,
            device=device,
        )
        for one in gradients
    ]
    verified = steps_right(stepping[0], gradient, residual, outputs, numels, ks, stream)
    residual.zero_()
    works = cycle(stepping)

    def add_and_zero() -> None:
        rest.add_(gradient)
        outputs.zero_()

    pieces = [
        Piece("residual.add_(gradient); output.zero_()", add_and_zero, 16 * numel),
        Piece(f"local step, {layers} layers", lambda: next(works).give(stream), 16 * numel),
    ]
    timings = time_all(pieces, device, steps)
    floor = timings[pieces[0].name].median
    rows = []
    for piece, aim in zip(pieces, ("", STEP_LIMIT), strict=True):
        timing = timings[piece.name]
        facts: dict[str, float | int | str] = {
            "us": 1e3 * timing.median,
            "GB/s": 1e-6 * piece.bytes_moved / timing.median,
            "x floor": timing.median / floor,
            "aim": aim,
        }
        rows.append(Row(piece.name, timing, facts))
    return rows, verified


def layers_of(numel: int, layers: int) -> list[int]:
    """Sizes of so many layers, multiples of 4, the largest some 1,000 times the smallest."""
    shares = np.geomspace(1, 1000, layers)
    numels = [max(4, int(numel * share / shares.sum()) // 4 * 4) for share in shares]
    numels[-1] += numel - sum(numels)
    return numels


def steps_right(
    work: _core.StreamWork,
    gradient: torch.Tensor,
    residual: torch.Tensor,
    outputs: torch.Tensor,
    numels: list[int],
    ks: list[int],
    stream: int,
) -> bool:
    """Whether a first step writes the largest entries of each layer, and leaves the others."""
    torch.cuda.synchronize(gradient.device)
    work.give(stream)
    count = len(work.fetch().values())
    right = count == sum(ks) and torch.equal(residual + outputs, gradient)
    layers = zip(residual.split(numels), outputs.split(numels), ks, strict=True)
    for kept, written, k in layers:
        magnitudes = written[written != 0].abs()
        right &= len(magnitudes) == k and float(kept.abs().max()) <= float(magnitudes.min())
    return right


def takes_right(
    work: _core.StreamWork, gradient: torch.Tensor, residual: torch.Tensor, k: int, stream: int
) -> bool:
    """Whether a first step takes the k largest entries of the gradient, and leaves the others."""
    torch.cuda.synchronize(gradient.device)
    work.give(stream)
    block = work.fetch()
    places = torch.from_numpy((block.indices() & ~SURVIVED).astype(np.int64))
    rest = residual.cpu()
    expected = gradient.cpu()
    right = torch.equal(torch.from_numpy(block.values().copy()), expected[places])
    right &= len(places) == k and not bool(rest[places].any())
    right &= float(rest.abs().max()) <= float(expected[places].abs().min())
    expected[places] = 0
    return right and torch.equal(rest, expected)
