"""Measures how much an exchange slows down the computation beside it.

    horovodrun -np 4 python benchmarks/overlap.py
    python benchmarks/virtual_cluster.py --hosts 2 --rate 20mbit -- \\
        python benchmarks/overlap.py --forward

waiting    A fixed computation on every rank, alone and while the exchange waits for a late rank:
           a waiting exchange should leave the cores to the model.
selecting  Steps of a model (forward, backward, exchange layer by layer, wait) with the selection on
           the thread that runs backward, and on a thread of the exchange.
forward    Instead of both: steps that wait, and steps for which the next forward pass waits.

The variants take turns, repetition by repetition. Gradients are integers, so that their sums are
exact: after each repetition the result must be the sum of the entries that left the residuals.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import forward_steps
import horovod.torch as hvd
import torch
import typer
from reporting import Row, Timing, report
from torch import nn

from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.planning import plan
from hvd_sparse.ranks.world import World

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

UNTIMED = 2  # repetitions before the timed ones


@dataclass
class Layers:
    """An exchange with a bucket for each of several parameters."""

    exchange: Exchange
    parameters: list[torch.Tensor]
    density: float

    def __post_init__(self) -> None:
        numels = [parameter.numel() for parameter in self.parameters]
        self._residual = torch.zeros(sum(numels))
        self._residuals = torch.split(self._residual, numels)
        self._before = [residual.clone() for residual in self._residuals]
        self._states = torch.zeros(len(numels), 4)
        self._begun = False
        self._steps = ArraySteps(
            self.exchange,
            *(
                self.exchange.add_bucket(
                    f"layer {i}",
                    numels=[numel],
                    segments=[numel],
                    max_ks=[plan.entries_to_send(numel, self.density)],
                    sparsifier=as_sparsifier("gaussian"),
                    collective="gtopk",
                )
                for i, numel in enumerate(numels)
            ),
        )

    def start(self, i: int, gradient: torch.Tensor) -> None:
        if not self._begun:
            self._steps.begin(residual=buffer(self._residual), states=buffer(self._states))
            self._begun = True
        self._steps.launch(i, [buffer(gradient)])

    def wait(self) -> None:
        self._steps.wait()
        self._steps.commit()
        self._begun = False

    def verify(self, gradients: list[torch.Tensor], sums: list[torch.Tensor]) -> bool:
        """Returns true if the step's sums are what left the residuals, and not empty. Collective.

        Args:
            gradients: Gradients of this rank before the step.
            sums: The exchanged gradients.
        """
        right = True
        for i, residual in enumerate(self._residuals):
            left = self._before[i] + gradients[i].flatten() - residual
            self._before[i].copy_(residual)
            left = hvd.allreduce(left, op=hvd.Sum, name=f"left of layer {i}")
            right &= bool(left.any()) and torch.equal(left, sums[i].flatten())
        return right


def buffer(tensor: torch.Tensor) -> Buffer:
    """Returns the tensor's memory, as the core takes it."""
    return Buffer(tensor.data_ptr(), tensor.numel(), "float32")


def slowest(seconds: list[float]) -> list[float]:
    """Returns, per repetition, the largest time of all ranks."""
    everybody = hvd.allgather(torch.tensor([seconds], dtype=torch.float64), name="seconds")
    return everybody.max(dim=0).values.tolist()


def everywhere(verified: bool) -> bool:
    """Returns true if `verified` is true on all ranks."""
    return bool(hvd.allgather(torch.tensor([int(verified)]), name="verified").all())


def integers(*shape: int) -> torch.Tensor:
    """Returns normal numbers, rounded to integers so small that all sums are exact."""
    return torch.randn(*shape).mul(100).round()


def measure_waiting(
    world: World, milliseconds: float, repetitions: int
) -> tuple[dict[str, list[float]], bool]:
    """Returns the seconds of the same computation, alone and beside a waiting exchange."""
    torch.manual_seed(1 + hvd.rank())
    gradient = torch.empty(100_000)
    layers = Layers(Exchange.between_ranks(world, name="waiting"), [gradient], density=0.01)
    late = hvd.size() - 1
    matrix = torch.randn(128, 128)

    def compute(products: int) -> float:
        hvd.barrier()
        start = time.perf_counter()
        for _ in range(products):
            torch.mm(matrix, matrix)
        return time.perf_counter() - start

    compute(1000)
    slow = slowest([compute(1000)])[0]  # the same number on all ranks
    products = max(1, round(milliseconds / 1e3 / slow * 1000))

    seconds: dict[str, list[float]] = {"alone": [], "beside a waiting exchange": []}
    verified = True
    for _ in range(UNTIMED + repetitions):
        own = integers(gradient.numel())
        gradient.copy_(own)
        seconds["alone"].append(compute(products))
        if hvd.rank() != late:
            layers.start(0, gradient)
        seconds["beside a waiting exchange"].append(compute(products))
        hvd.barrier()
        if hvd.rank() == late:
            layers.start(0, gradient)
        layers.wait()
        verified &= layers.verify([own], [gradient])
    layers.exchange.close()
    timed = {name: slowest(all_[UNTIMED:]) for name, all_ in seconds.items()}
    return timed, everywhere(verified)


def measure_selecting(
    world: World, depth: int, width: int, density: float, repetitions: int
) -> tuple[dict[str, list[float]], bool]:
    """Returns the seconds of a step with either thread selecting, and without any exchange."""
    torch.manual_seed(1)
    stages = [nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU()) for _ in range(depth)]
    model = nn.Sequential(*stages)
    parameters = list(reversed(list(model.parameters())))  # in the order of backward
    with torch.no_grad():  # products of integers with a permutation are integers
        for parameter in parameters:
            parameter.copy_(torch.eye(width)[torch.randperm(width)])
    torch.manual_seed(1 + hvd.rank())
    images, signs = integers(32, width), torch.randn(32, width).sign()

    variants: dict[str, Layers | None] = {"no exchange": None}
    for thread in ("caller", "engine"):
        exchange = Exchange.between_ranks(world, name=thread, select_on=thread)
        variants[f"selected on the {thread}'s thread"] = Layers(exchange, parameters, density)
    active: Layers | None = None

    def hook(i: int) -> Callable[[torch.Tensor], None]:
        def start(parameter: torch.Tensor) -> None:
            if active is not None:
                assert parameter.grad is not None
                active.start(i, parameter.grad)

        return start

    for i, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(hook(i))

    seconds: dict[str, list[float]] = {name: [] for name in variants}
    own: list[torch.Tensor] = []
    verified = True
    for _ in range(UNTIMED + repetitions):
        for name, layers in variants.items():
            model.zero_grad()
            active = layers
            hvd.barrier()
            start = time.perf_counter()
            (model(images) * signs).sum().backward()
            if layers is not None:
                layers.wait()
            seconds[name].append(time.perf_counter() - start)
            results = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if layers is None:
                own = [gradient.clone() for gradient in results]
            else:
                verified &= layers.verify(own, results)
    timed = {name: slowest(all_[UNTIMED:]) for name, all_ in seconds.items()}
    return timed, everywhere(verified)


def rows_of(title: str, seconds: dict[str, list[float]]) -> list[Row]:
    """Returns rows that compare each variant with the first one in the same repetition."""
    first = next(iter(seconds.values()))
    rows = []
    for name, own in seconds.items():
        against = Timing.of([a / b for a, b in zip(own, first, strict=True)])
        slower = 0.1 * against.median - 100  # in per cent: Timing multiplies by 1000
        rows.append(Row(f"{title}: {name}", Timing.of(own), {"slower than the first (%)": slower}))
    return rows


def report_forward(
    shape: forward_steps.Shape, density: float, turns: int, json: Path | None
) -> None:
    """Times steps that do not wait, and reports them."""
    found, equal = forward_steps.measure(shape, density, turns)
    verified = everywhere(equal)
    rows = []
    for compression, variants in found.items():
        for name, one in variants.items():
            facts = forward_steps.facts_of(variants, name, shape)
            rows.append(Row(f"{compression}: {name}", Timing.of(slowest(one.seconds)), {**facts}))
    if hvd.rank() == 0:
        settings = {"ranks": hvd.size(), **asdict(shape), "density": density, "turns": turns}
        title = f"steps that wait and steps that do not, {hvd.size()} ranks"
        report(title, rows, settings=settings, verified=verified, file=json)
    if not verified:
        raise typer.Exit(1)


@app.command()
def main(
    milliseconds: Annotated[float, typer.Option(help="of computation in `waiting`")] = 500,
    depth: Annotated[int, typer.Option(min=1, help="layers of the model")] = 8,
    width: Annotated[int, typer.Option(min=8, help="units of a layer")] = 1024,
    density: Annotated[float, typer.Option(help="fraction of each layer that is sent")] = 0.01,
    repetitions: Annotated[int, typer.Option(min=2, help="timed, of each variant")] = 15,
    forward: Annotated[bool, typer.Option("--forward", help="steps that do not wait")] = False,
    numel: Annotated[int, typer.Option(help="weights of a layer, with --forward")] = 500_000,
    forward_ms: Annotated[float, typer.Option(help="of all layers, with --forward")] = 160,
    backward_ms: Annotated[float, typer.Option(help="likewise")] = 320,
    json: Annotated[Path | None, typer.Option(help="also write the result here")] = None,
) -> None:
    """Times computation beside a waiting exchange, and steps with selection on either thread."""
    hvd.init()
    torch.set_num_threads(1)
    if forward:
        shape = forward_steps.Shape(depth, numel, forward_ms / 1e3, backward_ms / 1e3)
        report_forward(shape, density, repetitions, json)
        return
    world = World.from_horovod(hvd, hvd.global_process_set)
    waiting, waited_right = measure_waiting(world, milliseconds, repetitions)
    selecting, selected_right = measure_selecting(world, depth, width, density, repetitions)
    if hvd.rank() == 0:
        report(
            f"computation beside an exchange, {hvd.size()} ranks",
            rows_of("waiting", waiting) + rows_of("step", selecting),
            settings={
                "ranks": hvd.size(),
                "milliseconds": milliseconds,
                "depth": depth,
                "width": width,
                "density": density,
                "repetitions": repetitions,
            },
            verified=waited_right and selected_right,
            file=json,
        )
    if not (waited_right and selected_right):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
