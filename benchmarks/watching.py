"""Measures the cost of watching a training run.

    python benchmarks/watching.py --ranks 2 --steps 200

One job trains a copy of a network for each way to watch, turn by turn, on the same batches from the
same weights: not watched; metrics of every step to a function, to TensorBoard, to TensorBoard with
norms; a timeline. A whole step is timed on rank 0, which is the watching rank. The weights of all
copies must stay the same bit for bit, and each way must have seen every step.

The result is the share of the step that watching adds: the median difference between two
consecutive steps, one of them not watched. A timeline is written by a thread of its own, ten times
a second, beside any copy's step: that is not included.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from reporting import Row, Timing, report

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

UNTIMED = 10  # steps before the timed ones
BARE = "not watched"
TRACED = "a timeline"


class StepCounter:
    """Counts the steps that it is called for."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, metrics: dict[str, float], step: int) -> None:
        self.steps += 1


def written(folder: str) -> int:
    """Returns the number of steps in a TensorBoard folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()["scalars"]
    return min((len(events.Scalars(tag)) for tag in tags), default=0)


@contextmanager
def timeline(file: Path) -> Iterator[None]:
    """Makes optimizers that are constructed inside write a trace, on rank 0."""
    os.environ["HVD_SPARSE_TIMELINE"] = str(file)
    yield
    del os.environ["HVD_SPARSE_TIMELINE"]


def train(width: int, depth: int, batch: int, steps: int, json_file: Path | None) -> None:
    """Runs one rank of the job."""
    import horovod.torch as hvd
    import torch
    from torch.utils.tensorboard import SummaryWriter

    from hvd_sparse.torch import LAGS

    hvd.init()
    torch.set_num_threads(1)
    compression = LAGS(adaptive=False, density=0.01)
    counter = StepCounter()
    plain, with_norms = (SummaryWriter(tempfile.mkdtemp()) for _ in range(2))
    trace = Path(tempfile.mkdtemp()) / "trace.json"
    watches: dict[str, Callable[[Any], None]] = {
        BARE: lambda optimizer: None,
        "a function": lambda optimizer: optimizer.exchange.watch(counter),
        "TensorBoard": lambda optimizer: optimizer.exchange.watch(plain),
        "TensorBoard, norms": lambda optimizer: optimizer.exchange.watch(with_norms, norms=True),
        TRACED: lambda optimizer: None,
    }
    copies = {}
    for name, begin in watches.items():
        torch.manual_seed(1)
        layers = [torch.nn.Linear(width, width) for _ in range(depth)]
        model = torch.nn.Sequential(*[m for layer in layers for m in (layer, torch.nn.ReLU())])
        with timeline(trace) if name == TRACED else nullcontext():
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.01),
                named_parameters=model.named_parameters(prefix=name),
                compression=compression,
            )
        if hvd.rank() == 0:
            begin(optimizer)
        copies[name] = (model, optimizer)

    seconds: dict[str, list[float]] = {name: [] for name in copies}
    names = list(copies)
    for step in range(UNTIMED + steps):
        torch.manual_seed(1000 * step + hvd.rank())
        inputs = torch.randn(batch, width)
        turn = step % len(names)
        for name in names[turn:] + names[:turn]:  # no way is always first
            model, optimizer = copies[name]
            hvd.barrier()
            start = time.perf_counter()
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            seconds[name].append(time.perf_counter() - start)

    reference, *others = (list(model.parameters()) for model, _ in copies.values())
    same = all(
        torch.equal(one, other)
        for params in others
        for one, other in zip(reference, params, strict=True)
    )
    verified = all(hvd.allgather_object(same))
    is_rank0, size = hvd.rank() == 0, hvd.size()
    hvd.shutdown()  # completes the trace
    if is_rank0:
        verified &= counter.steps == UNTIMED + steps
        for writer in (plain, with_norms):
            writer.close()
            verified &= written(writer.log_dir) == UNTIMED + steps
        events = json.loads(trace.read_text())
        verified &= sum(one["name"] == "bytes per step" for one in events) == UNTIMED + steps
        of_trace = {
            "events a step": len(events) / (UNTIMED + steps),
            "bytes a step": trace.stat().st_size / (UNTIMED + steps),
        }
        numel = sum(param.numel() for param in reference)
        show(seconds, of_trace, numel, size, steps, verified, json_file)
    if not verified:
        sys.exit(1)


def show(
    seconds: dict[str, list[float]],
    of_trace: dict[str, float],
    numel: int,
    ranks: int,
    steps: int,
    verified: bool,
    json_file: Path | None,
) -> None:
    """Prints the table."""
    timed = {name: times[UNTIMED:] for name, times in seconds.items()}
    bare = timed[BARE]
    rows = []
    for name, times in timed.items():
        facts: dict[str, float | int | str] = {}
        if name != BARE:
            added = statistics.median(a - b for a, b in zip(times, bare, strict=True))
            facts = {
                "added, us": 1e6 * added,
                "of the step, %": 100 * added / statistics.median(bare),
            }
        if name == TRACED:
            facts |= of_trace
        rows.append(Row(name, Timing.of(times), facts))
    settings = {"ranks": ranks, "numel": numel, "steps": steps}
    title = f"{ranks} ranks, {numel} parameters, every step watched on rank 0"
    report(title, rows, settings=settings, verified=verified, file=json_file)


@app.command()
def main(
    ranks: Annotated[int, typer.Option(min=2)] = 2,
    width: Annotated[int, typer.Option(min=1, help="of each layer")] = 512,
    depth: Annotated[int, typer.Option(min=1, help="layers")] = 20,
    batch: Annotated[int, typer.Option(min=1, help="rows on each rank")] = 256,
    steps: Annotated[int, typer.Option(min=2, help="timed")] = 200,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write it here")] = None,
    is_rank: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Times steps with and without metrics."""
    if is_rank:
        train(width, depth, batch, steps, json_file)
        return
    command = [
        "mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks),
        sys.executable, __file__, "--is-rank", f"--width={width}", f"--depth={depth}",
        f"--batch={batch}", f"--steps={steps}",
    ]  # fmt: skip
    command += [] if json_file is None else [f"--json={json_file}"]
    raise typer.Exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    app()
