"""Times the whole local step of a model whose layers stay on a GPU; see device_blocks.py.

A step adds a gradient to the residual, and the next one subtracts it again: entries below the
threshold come and go, and the others are selected every time, so that all steps do the same work.
"""

from __future__ import annotations

from itertools import cycle

import numpy as np
import torch
from contenders import buffer
from device_blocks import Piece, time_all
from reporting import Row

from hvd_sparse import _core_testing

STEP_LIMIT = 1.5  # aim: ratio to the time of memory accesses alone


def measure_step(
    numel: int, layers: int, density: float, device: str, steps: int
) -> tuple[list[Row], bool]:
    """Times the whole local step of a model: error feedback, selection, settling, writing.

    It is compared with the memory accesses alone: adding gradients to residuals and zeroing them,
    in two launches of torch for all layers together. Layers with one or two selected entries miss
    their thresholds in most steps, as they do in training, and therefore use the exact top-k.

    Args:
        numel: Number of entries of the model.
        layers: Number of layers, each a segment; their sizes form a geometric series, as in real
            models.
        density: Fraction that is selected.
        device: Such as "cuda:0".
        steps: Number of timed steps.
    """
    numels = layers_of(numel, layers)
    ks = [max(1, int(one * density)) for one in numels]
    gradient = torch.randn(numel, device=device)
    gradients = (gradient, -gradient)
    outputs, residual, rest = (torch.zeros(numel, device=device) for _ in range(3))
    stream = torch.cuda.current_stream(device).cuda_stream
    stepping = [
        _core_testing.step_work(
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
        Piece(f"local step, {layers} layers", lambda: next(works).enqueue(stream), 16 * numel),
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
    """Returns sizes of layers, multiples of 4; the largest is some 1,000 times the smallest."""
    shares = np.geomspace(1, 1000, layers)
    numels = [max(4, int(numel * share / shares.sum()) // 4 * 4) for share in shares]
    numels[-1] += numel - sum(numels)
    return numels


def steps_right(
    work: _core_testing.StreamWork,
    gradient: torch.Tensor,
    residual: torch.Tensor,
    outputs: torch.Tensor,
    numels: list[int],
    ks: list[int],
    stream: int,
) -> bool:
    """Returns true if a first step writes each layer's largest entries, and leaves the others."""
    torch.cuda.synchronize(gradient.device)
    work.enqueue(stream)
    count = len(work.wait().values())
    right = count == sum(ks) and torch.equal(residual + outputs, gradient)
    layers = zip(residual.split(numels), outputs.split(numels), ks, strict=True)
    for kept, written, k in layers:
        magnitudes = written[written != 0].abs()
        right &= len(magnitudes) == k and float(kept.abs().max()) <= float(magnitudes.min())
    return right
