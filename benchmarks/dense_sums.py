"""Times dense sums over a virtual cluster's links: ours in every width, Horovod's, DDP's.

    python benchmarks/dense_sums.py --hosts 2 --hosts 4 --hosts 8 --hosts 16         (as root)
    python benchmarks/dense_sums.py --hosts 4 --ranks-per-host 4

Each method sums one float32 gradient over all ranks, in turns. A time is that of the slowest rank,
from a barrier until its gradient is written. Horovod over MPI and ours take turns in one job;
Horovod over Gloo and the allreduce of torch.distributed, which DDP uses, in a second one on the
same hosts. The links have to be slow enough to be the limit.

x ring   the time, divided by that of a ring between the hosts: 2 (P - 1) / P of the method's own
         bytes at the rate of the links, headers of TCP and Ethernet not counted
x dense  the same for the bytes of float32
CPU      processors in use, on average: of all ranks together

Gradients are small integers, so that float32 sums are exact. Every sum is compared with the
expected one. In fewer bits the ranks' results have to be equal bit for bit, and together with what
is left in all residuals they have to be the expected sum exactly.
"""

from __future__ import annotations

import hashlib
import json as json_module
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import ddp_methods
import gloo_world
import numpy as np
import typer
from cluster_network import Shape
from reporting import Result, Row, Timing, write
from virtual_cluster import VirtualCluster

from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.ranks.world import World

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

SECONDS = 3000  # limit of a job
WORKER = "HVD_SPARSE_DENSE_SUMS_WORKER"  # set for the ranks: the first one's output file
GLOO = "HVD_SPARSE_DENSE_SUMS_GLOO"  # set for the second job: HOST:PORT of the rendezvous
PORT = 29400
INTERFACE = "e0"  # of a host of a virtual cluster
# Bits of an entry in a message, scales included.
WIDTHS = {"float32": 32.0, "bfloat16": 16.0, "int8": 8.125, "int4": 4.125, "ternary": 1.6}
HOROVOD_MPI, HOROVOD_GLOO, TORCH_GLOO = "Horovod, MPI", "Horovod, Gloo", "torch.distributed, Gloo"


def gradient_of(rank: int, numel: int) -> np.ndarray:
    """Returns a rank's gradient: integers from -128 to 127, by a cheap rule."""
    positions = np.arange(numel, dtype=np.uint32)
    return ((positions * np.uint32(2654435761 + 2 * rank)) >> 24).astype(np.float32) - 128


class Ours:
    """This rank's memory, and an exchange with a bucket for each width."""

    def __init__(self, world: World, gradient: np.ndarray, widths: list[str]) -> None:
        self.gradient, self.output = gradient, np.empty_like(gradient)
        self.residual = np.zeros_like(gradient)
        self._state = np.zeros((1, 4), np.float32)
        self.exchange = Exchange.between_ranks(world, name="dense sums", transport="tcp")
        self._steps = {
            width: ArraySteps(
                self.exchange,
                self.exchange.add_bucket(
                    width,
                    numels=[gradient.size],
                    segments=[gradient.size],
                    max_ks=[gradient.size],
                    sparsifier=as_sparsifier("top_k"),
                    collective=SHARD_SUM,
                    values=width,
                ),
            )
            for width in widths
        }

    def prepare(self) -> None:
        """Puts the gradient back, before a repetition is timed."""
        self.output[:] = self.gradient
        self.residual[:] = 0

    def run(self, width: str) -> None:
        """Sums once; the gradient is then the sum."""
        self._steps[width].run(
            [Buffer.of(self.output)],
            residual=Buffer.of(self.residual),
            states=Buffer.of(self._state),
        )


def timed(
    methods: dict[str, tuple[Callable[[], None], Callable[[], None]]],
    barrier: Callable[[], object],
    check: Callable[[str], bool],
    repetitions: int,
) -> tuple[dict[str, list[tuple[float, float, float]]], bool]:
    """Runs all methods in turns; returns begin, end and processor seconds, and if all was right.

    Args:
        methods: For each method what precedes the timed part, and that part.
        barrier: Waits for all ranks.
        check: Checks the result of a method.
        repetitions: Timed repetitions, after one that is not.
    """
    times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in methods}
    right = True
    for turn in range(repetitions + 1):
        for name, (prepare, run) in methods.items():
            prepare()
            barrier()
            begin, clock = time.monotonic(), time.process_time()
            run()
            end, clock = time.monotonic(), time.process_time() - clock
            if turn == 0:
                right &= check(name)
            else:
                times[name].append((begin, end, clock))
    return times, right


def work(numel: int, widths: list[str], repetitions: int, file: Path) -> None:
    """Runs one rank's part of the first job; the first rank writes the results."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.set_num_threads(1)
    world = World.from_horovod(hvd, hvd.global_process_set)
    gradient = gradient_of(hvd.rank(), numel)
    expected = sum(gradient_of(rank, numel) for rank in range(hvd.size()))
    ours = Ours(world, gradient, widths)
    tensor = torch.from_numpy(ours.output)

    def check(name: str) -> bool:
        digests = world.allgather_object(hashlib.blake2b(ours.output).hexdigest())
        same = len(set(digests)) == 1
        left = torch.from_numpy(ours.residual.copy())
        hvd.allreduce_(left, op=hvd.Sum, name="left")
        is_there = ours.output + left.numpy()
        return same and (name == HOROVOD_MPI or np.array_equal(is_there, expected))

    def horovod() -> None:
        hvd.allreduce_(tensor, op=hvd.Sum, name="gradient")

    methods: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        HOROVOD_MPI: (ours.prepare, horovod)
    }
    for width in widths:
        methods[width] = (ours.prepare, lambda width=width: ours.run(width))
    times, right = timed(methods, hvd.barrier, check, repetitions)
    ours.exchange.close()
    report(world, times, right, hvd.rank() == 0, file)


def work_with_gloo(numel: int, repetitions: int, file: Path) -> None:
    """Runs one rank's part of the second job; the first rank writes the results."""
    host, port = os.environ[GLOO].rsplit(":", 1)
    gloo_world.prepare(f"{host}:{port}", INTERFACE)
    import horovod.torch as hvd
    import torch
    import torch.distributed as dist

    hvd.init()
    torch.set_num_threads(1)
    ddp_methods.join_ddp(f"{host}:{int(port) + 1}", INTERFACE)
    world = World.from_horovod(hvd, hvd.global_process_set)
    gradient = torch.from_numpy(gradient_of(hvd.rank(), numel))
    expected = sum(torch.from_numpy(gradient_of(rank, numel)) for rank in range(hvd.size()))
    output = torch.empty_like(gradient)

    def prepare() -> None:
        output.copy_(gradient)

    def horovod() -> None:
        hvd.allreduce_(output, op=hvd.Sum, name="gradient")

    methods: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        HOROVOD_GLOO: (prepare, horovod),
        TORCH_GLOO: (prepare, lambda: dist.all_reduce(output)),
    }
    times, right = timed(methods, hvd.barrier, lambda _: torch.equal(output, expected), repetitions)
    report(world, times, right, hvd.rank() == 0, file)


def report(
    world: World,
    times: dict[str, list[tuple[float, float, float]]],
    right: bool,
    is_first: bool,
    file: Path,
) -> None:
    """Writes the slowest rank's seconds of each repetition, on the first rank."""
    rows = world.allgather_object([list(map(list, one)) for one in times.values()])
    everybody = np.array(rows)  # [rank, method, repetition, (begin, end, processor)]
    seconds = everybody[..., 1].max(0) - everybody[..., 0].max(0)
    found = {
        "seconds": dict(zip(times, seconds.tolist(), strict=True)),
        "processor": dict(zip(times, everybody[..., 2].sum(0).mean(1).tolist(), strict=True)),
        "right": all(world.allgather_object(bool(right))),
    }
    if is_first:
        write(file, found)


def rows_of(
    found: dict[str, Any], numel: int, hosts: int, ranks_per_host: int, rate: float
) -> list[Row]:
    """Returns the rows of a table: times beside the bound of a ring between the hosts."""
    rows = []
    for name, seconds in found["seconds"].items():
        timing = Timing.of(seconds)

        def bound(bits: float) -> float:
            return 1e3 * 2 * (hosts - 1) / hosts * numel * bits / rate

        rows.append(
            Row(
                f"{hosts} hosts x {ranks_per_host}: {'ours, ' if name in WIDTHS else ''}{name}",
                timing,
                {
                    "x ring": timing.median / bound(WIDTHS.get(name, 32.0)),
                    "x dense": timing.median / bound(32.0),
                    "CPU": found["processor"][name] / statistics.median(seconds),
                },
            )
        )
    return rows


@app.command()
def main(
    hosts: Annotated[list[int] | None, typer.Option(help="may be given repeatedly")] = None,
    ranks_per_host: Annotated[int, typer.Option(min=1)] = 1,
    numel: Annotated[int, typer.Option(min=1, help="entries of the gradient")] = 25_600_000,
    rate: Annotated[str, typer.Option(help="of every link in each direction")] = "100mbit",
    width: Annotated[list[str] | None, typer.Option(help="of ours; all unless given")] = None,
    repetitions: Annotated[int, typer.Option(min=2, help="timed, of each")] = 3,
    json: Annotated[Path | None, typer.Option(help="also write the result here")] = None,
) -> None:
    """Times dense sums over a virtual cluster's links."""
    widths = width or list(WIDTHS)
    if WORKER in os.environ:
        file = Path(os.environ[WORKER])
        if GLOO in os.environ:
            work_with_gloo(numel, repetitions, file)
        else:
            work(numel, widths, repetitions, file)
        return
    results = []
    options = [f"--numel={numel}", f"--repetitions={repetitions}"]
    options += [f"--width={one}" for one in widths]
    for count in hosts or [2, 4, 8, 16]:
        rows: list[Row] = []
        right = True
        with VirtualCluster(count, rate) as cluster, TemporaryDirectory() as folder:
            file = Path(folder) / "found.json"
            command = [sys.executable, str(Path(__file__).resolve()), *options]
            jobs = [{WORKER: str(file)}]
            if ranks_per_host == 1:
                jobs.append({WORKER: str(file), GLOO: f"{cluster.addresses[0]}:{PORT}"})
            for env in jobs:
                cluster.run(command, ranks_per_host=ranks_per_host, env=env, timeout=SECONDS)
                found = json_module.loads(file.read_text())
                bits = Shape.of(rate).rate
                rows += rows_of(found, numel, count, ranks_per_host, bits)
                right &= found["right"]
        settings = {
            "hosts": count, "ranks per host": ranks_per_host, "entries": numel, "rate": rate,
            "repetitions": repetitions,
        }  # fmt: skip
        title = ", ".join(f"{name} {value}" for name, value in settings.items())
        result = Result(title, rows, settings, right)
        result.show()  # at once: the next cluster may fail
        results.append(result)
        if json is not None:
            write(json, [one.as_json() for one in results])
    if not all(result.verified for result in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
