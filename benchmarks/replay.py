"""Times steps of data-parallel training with replayed compute, by several methods in one job.

    mpirun -np 4 python benchmarks/replay.py --model ResNet-20 --forward .01 --backward .02 \
        --mode compute --mode dense --mode "LAGS(density=0.01)"

A mode is `compute` (no exchange), `dense` (stock Horovod), or a compression of hvd_sparse with its
options. The modes take turns, and steps follow each other without a barrier, as in training. Before
that, an adaptive mode takes the steps that its tuner needs (--tuning-skipped and --tuning-timed, of
dense steps and of sparse ones) and prints its plan. replayed.py describes which parts are real and
which are waits. With --gloo HOST:PORT Horovod runs over Gloo, and sparse exchanges over TCP.

seconds      of each step, on the slowest rank
sent         bytes that a rank sent per step, averaged over the ranks: sparse blocks with their
             headers, and dense gradients as in a ring, 2 (P - 1) / P times their size
on the wire  bytes sent according to the interface's counter, all headers included
CPU          seconds of all ranks together per step; share of the machine's cores during the steps,
             by its own counters, including all other processes
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from gloo_world import prepare
from machine import Usage, cores, memory_of_this_process
from memory import GIB, needed
from modes import compression_of
from paper_models import MODELS, Model
from reporting import write
from tuned import DECISION_STEPS, Settling, set_tuning_steps, settle

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

SAMPLED = 50_000  # entries of the largest tensor in which conservation is checked
LEARNING_RATE = 0.1


@dataclass(frozen=True)
class Measured:
    """Measurements of one mode, over all its timed steps and all ranks.

    Attributes:
        mode: The mode, as given.
        seconds: Seconds of each step.
        forward: Median seconds of the forward pass.
        backward: Median seconds of the backward pass, hooks included.
        finish: Median seconds of the wait after backward.
        bytes_sent: Bytes sent per rank and step.
        bytes_on_wire: Bytes sent by the interface's counter; 0 if no interface was named.
        cpu_seconds: Processor seconds of all ranks, per step.
        cpu_share: Busy share of the machine's cores, 0 to 1.
        verified: True if the last step was right on all ranks.
        settling: How an adaptive mode chose its plan; None for other modes.
    """

    mode: str
    seconds: list[float]
    forward: float
    backward: float
    finish: float
    bytes_sent: float
    bytes_on_wire: float
    cpu_seconds: float
    cpu_share: float
    verified: bool
    settling: Settling | None


@dataclass
class Log:
    """Measurements of one mode on one rank."""

    steps: list[tuple[float, float, float]] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)
    bytes_sent: int = 0


class Variant:
    """A mode: a training of its own, whose gradient memory all modes share."""

    def __init__(self, mode: str, training: Any) -> None:
        import horovod.torch as hvd
        import torch

        class Standing(torch.optim.SGD):
            """Changes nothing, so that parameters need no memory; its hooks run as usual."""

            def step(self, closure: Any = None) -> None:
                pass

        self.mode = mode
        self.training = training
        self.log = Log()
        self.steps = 0
        self.settling: Settling | None = None
        named = training.named_parameters()
        optimizer: Any = Standing([value for _, value in named], lr=LEARNING_RATE)
        self.sparse = mode not in ("compute", "dense")
        if mode != "compute":
            compression = hvd.Compression.none
            if self.sparse:
                import hvd_sparse.torch  # noqa: F401  teaches Horovod sparse compressions

                compression = compression_of(mode)
            optimizer = hvd.DistributedOptimizer(
                optimizer, named_parameters=named, compression=compression, op=hvd.Sum
            )
        self.optimizer = optimizer

    @property
    def dense(self) -> bool:
        """True if gradients are exchanged dense, be it by a tuner's decision."""
        return self.mode == "dense" or (self.settling is not None and not self.settling.sparse)

    @property
    def needs_few_steps(self) -> bool:
        """True if one step tells as much as many do: it consists of waits alone, or is dense."""
        return self.dense or self.mode == "compute"

    def settle(self) -> None:
        """Takes the steps in which an adaptive mode decides between dense and sparse."""
        if self.sparse:
            self.settling = settle(self.optimizer, self.step)

    def step(self) -> tuple[float, float, float]:
        """Takes a training step; returns the seconds of forward, backward and the wait after it."""
        marks = [time.perf_counter()]
        self.optimizer.zero_grad()
        loss = self.training.forward(self.steps)
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        self.optimizer.step()
        marks.append(time.perf_counter())
        self.steps += 1
        first, second, third = (b - a for a, b in pairwise(marks))
        return first, second, third

    def bytes_of_step(self, size: int) -> float:
        """Returns the bytes that this rank sent in the last step."""
        in_a_ring = 2 * (size - 1) / size
        if self.mode == "compute":
            return 0.0
        if self.mode == "dense":
            return in_a_ring * sum(4 * p.tensor.numel for p in self.training.parameters)
        import hvd_sparse.torch

        last = hvd_sparse.torch.stats(self.optimizer).last
        return 0.0 if last is None else last.bytes_sent + in_a_ring * last.dense_bytes

    def residual(self, name: str) -> Any:
        """Returns a copy of a parameter's residual, flat; zeros if it has none."""
        import torch

        from hvd_sparse.pytorch.attachment import attachment_of

        attachment = attachment_of(self.optimizer)
        exchange = None if attachment is None else attachment.exchange
        for layer, residual in () if exchange is None else exchange.state.residuals():
            if layer == name:
                return residual.clone()
        return torch.zeros(dict(self.training.named_parameters())[name].numel())

    def verify(self) -> bool:
        """Returns true if a step leaves the same bits on all ranks and loses nothing. Collective.

        Sparse modes take one more step, because the residual must be known before and after it.
        Modes without residuals check their last step, which no other mode's step has followed.
        """
        import horovod.torch as hvd
        import torch

        largest = max(self.training.parameters, key=lambda p: p.tensor.numel)
        name = largest.tensor.name
        own = torch.empty_like(largest.gradient)
        before = self.residual(name)
        if self.sparse:
            self.step()
        self.training.gradients.write(own, tensor=largest.number, step=self.steps - 1)
        left = (own.view(-1) + before - self.residual(name))[:SAMPLED].double()
        result = largest.gradient.view(-1)[:SAMPLED].double()
        if self.mode == "compute":
            return bool((left == result).all())
        total = hvd.allreduce(left, op=hvd.Sum, name=f"verify {self.mode}")
        digest = hashlib.sha256()
        for parameter in self.training.parameters:
            digest.update(memoryview(parameter.gradient.view(-1).numpy()).cast("B"))
        bits = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
        everybody = hvd.allgather(bits[None], name=f"bits {self.mode}")
        same = bool((everybody == everybody[0]).all())
        return same and bool((total == result).all()) and bool(result.any())


def replay(variant: Variant, steps: int, size: int, interface: str | None) -> None:
    """Takes timed steps; sparse ones follow an untimed step, which aligns the ranks."""
    if not variant.needs_few_steps:
        variant.step()
    before = Usage.now(interface)
    for _ in range(steps):
        variant.log.steps.append(variant.step())
    variant.log.usage.append(Usage.now(interface) - before)
    variant.log.bytes_sent += round(steps * variant.bytes_of_step(size))


def measured(variant: Variant, verified: bool) -> Measured:
    """Combines all ranks' measurements. Collective."""
    import horovod.torch as hvd
    import torch

    log = variant.log
    steps = len(log.steps)

    def everybody(name: str, values: list[float]) -> Any:
        own = torch.tensor([values], dtype=torch.float64)
        return hvd.allgather(own, name=f"{name} {variant.mode}")

    parts = [[step[part] for step in log.steps] for part in range(3)]
    seconds = everybody("seconds", [sum(step) for step in log.steps]).max(dim=0).values.tolist()
    forward, backward, finish = (
        statistics.median(everybody(f"part {part}", parts[part]).mean(dim=0).tolist())
        for part in range(3)
    )
    cpu, wire, sent, right = everybody(
        "sums",
        [
            sum(usage.cpu_seconds for usage in log.usage),
            sum(usage.bytes_sent for usage in log.usage),
            log.bytes_sent,
            float(verified),
        ],
    ).T
    busy = sum(usage.busy_seconds for usage in log.usage)
    passed = sum(usage.seconds for usage in log.usage)
    return Measured(
        mode=variant.mode,
        seconds=seconds,
        forward=forward,
        backward=backward,
        finish=finish,
        bytes_sent=float(sent.mean()) / steps,
        bytes_on_wire=float(wire.mean()) / steps,
        cpu_seconds=float(cpu.sum()) / steps,
        cpu_share=busy / passed / cores(),
        verified=bool(right.all()),
        settling=variant.settling,
    )


def show(result: dict[str, Any], tell: Callable[[str], None]) -> None:
    """Prints the result, a line per mode."""
    for mode in result["modes"]:
        seconds = mode["seconds"]
        tell(
            f"{mode['mode']:40} {statistics.median(seconds):8.4f} s "
            f"({min(seconds):.4f}-{max(seconds):.4f})  "
            f"sent {mode['bytes_sent'] / 1e6:.3f} MB  CPU {mode['cpu_seconds']:.3f} s, "
            f"{mode['cpu_share']:.0%} of the machine  "
            f"{'verified' if mode['verified'] else 'NOT VERIFIED'}"
        )


@app.command()
def main(
    mode: Annotated[list[str], typer.Option(help="compute, dense, or LAGS(density=0.01)")],
    model: Annotated[str, typer.Option(help="of paper_models")] = "ResNet-20",
    forward: Annotated[float, typer.Option(help="seconds of a forward pass")] = 0.01,
    backward: Annotated[float, typer.Option(help="seconds of a backward pass")] = 0.02,
    dilation: Annotated[float, typer.Option(help="waits take so many times as long")] = 1.0,
    steps: Annotated[int, typer.Option(min=1, help="timed, in each turn of each mode")] = 5,
    dense_steps: Annotated[int | None, typer.Option(min=1, help="of dense, compute")] = None,
    turns: Annotated[int, typer.Option(min=1, help="of each mode")] = 3,
    untimed: Annotated[int, typer.Option(min=0, help="steps before the first turn")] = 3,
    tuning_skipped: Annotated[int, typer.Option(min=1, help="by a tuner, of each kind")] = 2,
    tuning_timed: Annotated[int, typer.Option(min=1, help="by a tuner, of each kind")] = 5,
    gloo: Annotated[str | None, typer.Option(help="HOST:PORT for Horovod over Gloo")] = None,
    interface: Annotated[str | None, typer.Option(help="of the network, to count bytes")] = None,
    memory_limit: Annotated[float, typer.Option(help="GiB, for all ranks together")] = 20.0,
    json: Annotated[Path | None, typer.Option(help="also write the result here")] = None,
) -> None:
    """Times steps of training whose compute is replayed."""
    if model not in MODELS:
        raise typer.BadParameter(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    if gloo is not None:
        prepare(gloo, interface or "lo")
    import horovod.torch as hvd
    import torch
    from replayed import Clock, Gradients, Training, gradient_memory, most_steps

    torch.set_num_threads(1)
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    chosen: Model = MODELS[model]
    estimate = needed(chosen, size, mode)
    if rank == 0:
        print(f"{size} ranks of {model} need {estimate / GIB:.1f} GiB", flush=True)
    if estimate > memory_limit * GIB:
        raise typer.BadParameter(
            f"memory_limit is {memory_limit:g} GiB and {size} ranks need {estimate / GIB:.1f} GiB"
        )
    dense_steps = steps if dense_steps is None else dense_steps
    set_tuning_steps(tuning_skipped, tuning_timed)
    tuning = 3 * (tuning_skipped + tuning_timed + DECISION_STEPS)  # as many as with a second plan
    if tuning + untimed + turns * (max(steps, dense_steps) + 1) + 1 > most_steps(size):
        raise typer.BadParameter(f"at most {most_steps(size)} steps of a mode with {size} ranks")

    clock, gradients, memory = Clock(dilation), Gradients(rank), gradient_memory(chosen)
    variants = [
        Variant(
            each,
            Training(
                chosen, forward=forward, backward=backward, clock=clock, gradients=gradients,
                memory=memory,
            ),
        )
        for each in mode
    ]  # fmt: skip
    for variant in variants:
        variant.settle()
        if rank == 0 and variant.settling is not None:
            print("\n".join([variant.mode, *variant.settling.lines()]), flush=True)
    for variant in variants:  # those that need few take one, in which Horovod learns its names
        for _ in range(min(untimed, 1) if variant.needs_few_steps else untimed):
            variant.step()
    results: list[Measured] = []
    for turn in range(turns):
        for variant in variants:
            hvd.barrier()
            replay(variant, dense_steps if variant.needs_few_steps else steps, size, interface)
            if turn == turns - 1:
                results.append(measured(variant, variant.verify()))
    held = hvd.allreduce(torch.tensor([float(memory_of_this_process())]), op=hvd.Sum, name="held")
    result = {
        "model": model,
        "ranks": size,
        "transport": "Gloo" if gloo else "MPI",
        "forward": forward,
        "backward": backward,
        "dilation": dilation,
        "tuning_skipped": tuning_skipped,
        "tuning_timed": tuning_timed,
        "bytes_needed": estimate,
        "bytes_held": float(held),
        "modes": [asdict(each) for each in results],
    }
    if rank == 0:
        show(result, print)
        print(f"memory held: {float(held) / GIB:.1f} GiB")
        if json is not None:
            write(json, result)
    hvd.barrier()
    if not all(each.verified for each in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
