"""Error feedback and selection against torch.topk, side by side on one thread.

    python benchmarks/kernels.py --numel 25600000 --density 0.001

Timed is what a rank does for every gradient before anything is sent: add it to the residual, then
choose what is sent. "steady" knows the threshold that the last step ended with; "cold" does not.
Each call takes the next of several gradients, so that none finds its own in the cache.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from reporting import Row, Timing, report

from hvd_sparse import _core

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

BUFFERS = 7  # of gradients, in rotation; more than the calls of one step
STARTS = {"gaussian": ("steady", "cold"), "top_k": ("",)}  # top_k has no use for a threshold
UNTIMED_STEPS = 3  # until residuals and thresholds have settled


def buffer(tensor: torch.Tensor) -> tuple[int, int, str]:
    """The tensor as the core takes it: address, number of elements, dtype."""
    return tensor.data_ptr(), tensor.numel(), str(tensor.dtype).removeprefix("torch.")


@dataclass
class Core:
    """Accumulate and Select of this package; its residual is what was not yet selected."""

    sparsifier: str
    residual: torch.Tensor
    cold: bool
    threshold: torch.Tensor = field(default_factory=lambda: torch.zeros(1))
    block: _core.Block = field(default_factory=_core.Block)

    def step(self, gradient: torch.Tensor, k: int) -> None:
        if self.cold:
            self.threshold.zero_()
        _core.accumulate(buffer(gradient), 1.0, 1.0, buffer(self.residual))
        _core.select_into(
            self.sparsifier, buffer(self.residual), k, buffer(self.threshold), self.block
        )

    def selected(self) -> tuple[np.ndarray, np.ndarray]:
        return self.block.indices(), self.block.values()


@dataclass
class Torch:
    """The same by torch: add, top-k of the magnitudes, gather."""

    residual: torch.Tensor
    indices: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    values: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    top_k_seconds: list[float] = field(default_factory=list)

    def step(self, gradient: torch.Tensor, k: int) -> None:
        self.residual.add_(gradient)
        start = time.perf_counter()
        self.indices = torch.topk(self.residual.abs(), k).indices
        self.top_k_seconds.append(time.perf_counter() - start)
        self.values = self.residual[self.indices]

    def selected(self) -> tuple[np.ndarray, np.ndarray]:
        order = self.indices.argsort()
        return self.indices[order].numpy(), self.values[order].numpy()


def is_right(
    accumulated: torch.Tensor, indices: np.ndarray, values: np.ndarray, k: int, exact: bool
) -> bool:
    """Are these the largest entries, about k of them, in order and with their values?"""
    low, high = (k, k) if exact else (k // 2, 2 * k)
    dense = accumulated.numpy()
    rest = np.abs(dense)
    rest[indices] = 0
    return bool(
        low <= len(indices) <= high
        and np.all(np.diff(indices) > 0)
        and np.array_equal(dense[indices], values)
        and np.abs(values).min() >= rest.max()
    )


@dataclass
class Measured:
    """What came out of the repetitions of one method."""

    method: Core | Torch
    exact: bool
    seconds: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    verified: bool = True

    def step(self, gradient: torch.Tensor, k: int) -> None:
        accumulated = self.method.residual + gradient
        start = time.perf_counter()
        self.method.step(gradient, k)
        self.seconds.append(time.perf_counter() - start)
        indices, values = self.method.selected()
        self.counts.append(len(indices))
        self.verified &= is_right(accumulated, indices, values, k, self.exact)
        self.method.residual[torch.from_numpy(indices).long()] = 0  # delivered


def draw(distribution: str, numel: int, generator: torch.Generator) -> torch.Tensor:
    """A gradient of that distribution."""
    normal = torch.randn(numel, generator=generator)
    if distribution == "gaussian":
        return normal
    # A Laplace variable is a normal one with an exponential variance.
    return normal * torch.empty(numel).exponential_(generator=generator).sqrt_()


@app.command()
def main(
    numel: Annotated[int, typer.Option(min=2, help="entries of the gradient")] = 25_600_000,
    density: Annotated[float, typer.Option(help="fraction that is selected")] = 0.001,
    steps: Annotated[int, typer.Option(min=2, help="timed steps")] = 15,
    distribution: Annotated[str, typer.Option(help="gaussian or laplace")] = "laplace",
    json: Annotated[Path | None, typer.Option(help="also write the result here")] = None,
) -> None:
    """Times accumulate + select of every sparsifier against torch."""
    torch.set_num_threads(1)
    k = max(1, math.ceil(density * numel))
    generator = torch.Generator().manual_seed(1)
    gradients = [draw(distribution, numel, generator) for _ in range(BUFFERS)]

    measured = {
        "torch: add_, topk(abs), gather": Measured(Torch(torch.zeros(numel)), exact=True),
    }
    for sparsifier, starts in STARTS.items():
        for start in starts:
            core = Core(sparsifier, torch.zeros(numel), cold=start == "cold")
            name = " ".join(f"{sparsifier}: accumulate, select {start}".split())
            measured[name] = Measured(core, exact=sparsifier == "top_k")

    add_seconds = []
    scratch = torch.zeros(numel)
    rotation = itertools.cycle(gradients)
    for _ in range(UNTIMED_STEPS + steps):
        gradient = next(rotation)
        begin = time.perf_counter()
        scratch.add_(gradient)
        add_seconds.append(time.perf_counter() - begin)
        for one in measured.values():
            one.step(next(rotation), k)

    reference = measured["torch: add_, topk(abs), gather"]
    assert isinstance(reference.method, Torch)
    top_k = Timing.of(reference.method.top_k_seconds[UNTIMED_STEPS:])
    rows = [
        Row("residual.add_(gradient)", Timing.of(add_seconds[UNTIMED_STEPS:]), {}),
        Row("torch.topk(abs)", top_k, {"fraction of topk(abs)": 1.0}),
    ]
    for name, one in measured.items():
        timing = Timing.of(one.seconds[UNTIMED_STEPS:])
        counts = one.counts[UNTIMED_STEPS:]
        facts = {
            "fraction of topk(abs)": timing.median / top_k.median,
            "count / k, least": min(counts) / k,
            "count / k, most": max(counts) / k,
            "GB/s": 12e-6 * numel / timing.median,
        }
        rows.append(Row(name, timing, facts))
    # The rows of one step use different gradients, so the rotation must not fall into step with it.
    assert math.gcd(len(measured) + 1, BUFFERS) == 1
    verified = all(one.verified for one in measured.values())
    settings = {
        "numel": numel, "density": density, "k": k, "steps": steps, "distribution": distribution,
        "threads": 1, "instruction_set": _core.instruction_set(),
    }  # fmt: skip
    report(
        f"accumulate + select: {numel:,} entries, k = {k:,}, {distribution}, one thread",
        rows, settings=settings, verified=verified, file=json,
    )  # fmt: skip
    if not verified:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
