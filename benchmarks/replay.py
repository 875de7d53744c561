"""Times steps of data-parallel training with replayed compute, by several methods in one job.

    mpirun -np 4 python benchmarks/replay.py --model ResNet-20 --forward .01 --backward .02 \
        --mode compute --mode dense --mode "LAGS(density=0.01)"

A mode is `compute` (no exchange), `dense` (stock Horovod), or a compression of hvd_sparse with its
options. The modes take turns, and steps follow each other without a barrier, as in training. Before
that, an adaptive mode takes the steps that its tuner needs (--tuning-skipped and --tuning-timed, of
dense steps and of sparse ones) and prints its plan. replayed.py describes which parts are real and
which are waits. With --gloo HOST:PORT Horovod runs over Gloo, and sparse exchanges over TCP.

With --ddp HOST:PORT the job has no Horovod: DistributedDataParallel exchanges the gradients, over
gloo. Its modes are `compute`, `DDP` (its own allreduce), `DDP(hook="fp16")`,
`DDP(hook="powersgd", matrix_rank=4)`, and compressions, by hvd_sparse.ddp.attach.

seconds      of each step, on the slowest rank
sent         bytes that a rank sent per step, averaged over the ranks: sparse blocks with their
             headers, and dense gradients as in a ring, 2 (P - 1) / P times their size; not told
             of PyTorch's hooks
on the wire  bytes sent according to the interface's counter, all headers included
CPU          seconds of all ranks together per step; share of the machine's cores during the steps,
             by its own counters, including all other processes
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from machine import Usage, cores, memory_of_this_process
from memory import GIB, needed
from paper_models import MODELS, Model
from replay_variants import GroupRanks, HorovodRanks, Ranks, Variant
from replayed import Clock, Gradients, Training, gradient_memory, most_steps
from reporting import write
from tuned import DECISION_STEPS, Settling, set_tuning_steps

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Measured:
    """Measurements of one mode, over all its timed steps and all ranks.

    Attributes:
        mode: The mode, as given.
        seconds: Seconds of each step.
        forward: Median seconds of the forward pass.
        backward: Median seconds of the backward pass, hooks included.
        finish: Median seconds of the wait after backward.
        bytes_sent: Bytes sent per rank and step; None for PyTorch's hooks, which count none.
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
    bytes_sent: float | None
    bytes_on_wire: float
    cpu_seconds: float
    cpu_share: float
    verified: bool
    settling: Settling | None


def replay(variant: Variant, steps: int, interface: str | None) -> None:
    """Takes timed steps; sparse ones follow an untimed step, which aligns the ranks."""
    if not variant.needs_few_steps:
        variant.step()
    before = Usage.now(interface)
    for _ in range(steps):
        variant.log.steps.append(variant.step())
    variant.end_turn()
    variant.log.usage.append(Usage.now(interface) - before)
    sent = variant.bytes_of_step()
    variant.log.bytes_sent += math.nan if sent is None else steps * sent


def measured(variant: Variant, verified: bool) -> Measured:
    """Combines all ranks' measurements. Collective."""
    log = variant.log
    steps = len(log.steps)

    def everybody(name: str, values: list[float]) -> torch.Tensor:
        own = torch.tensor(values, dtype=torch.float64)
        return variant.ranks.everybody(own, f"{name} {variant.mode}")

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
    bytes_sent = float(sent.mean()) / steps
    return Measured(
        mode=variant.mode,
        seconds=seconds,
        forward=forward,
        backward=backward,
        finish=finish,
        bytes_sent=None if math.isnan(bytes_sent) else bytes_sent,
        bytes_on_wire=float(wire.mean()) / steps,
        cpu_seconds=float(cpu.sum()) / steps,
        cpu_share=busy / passed / cores(),
        verified=bool(right.all()),
        settling=variant.settling,
    )


def show(result: dict[str, Any], tell: Callable[[str], None]) -> None:
    """Prints the result, a line per mode."""
    for mode in result["modes"]:
        seconds, sent = mode["seconds"], mode["bytes_sent"]
        told = "" if sent is None else f"sent {sent / 1e6:.3f} MB  "
        tell(
            f"{mode['mode']:40} {statistics.median(seconds):8.4f} s "
            f"({min(seconds):.4f}-{max(seconds):.4f})  "
            f"{told}CPU {mode['cpu_seconds']:.3f} s, "
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
    ddp: Annotated[str | None, typer.Option(help="HOST:PORT for DDP, without Horovod")] = None,
    bucket_mb: Annotated[int | None, typer.Option(min=1, help="DDP's bucket_cap_mb")] = None,
    interface: Annotated[str | None, typer.Option(help="of the network, to count bytes")] = None,
    memory_limit: Annotated[float, typer.Option(help="GiB, for all ranks together")] = 20.0,
    json: Annotated[Path | None, typer.Option(help="also write the result here")] = None,
) -> None:
    """Times steps of training whose compute is replayed."""
    if model not in MODELS:
        raise typer.BadParameter(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    if gloo is not None and ddp is not None:
        raise typer.BadParameter("gloo is Horovod's, which ddp does not use: give one of them")
    torch.set_num_threads(1)
    ranks: Ranks = (
        HorovodRanks(gloo, interface) if ddp is None else GroupRanks(ddp, interface, bucket_mb)
    )
    rank, size = ranks.rank, ranks.size
    chosen: Model = MODELS[model]
    estimate = needed(chosen, size, mode, ddp=ddp is not None)
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
        ranks.variant(
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
            ranks.barrier()
            replay(variant, dense_steps if variant.needs_few_steps else steps, interface)
            if turn == turns - 1:
                results.append(measured(variant, variant.verify()))
    held = ranks.everybody(torch.tensor([float(memory_of_this_process())]), "held").sum()
    result = {
        "model": model,
        "ranks": size,
        "transport": ranks.transport,
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
    ranks.leave()
    if not all(each.verified for each in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
