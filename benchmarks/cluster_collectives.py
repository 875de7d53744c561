"""Every collective over a virtual cluster's links, against sockets that move the same bytes.

    python benchmarks/cluster_collectives.py --hosts 2 --hosts 4 --hosts 8 --rate 1gbit

builds virtual clusters (as root; see docs/virtual_cluster.md) and times in each, in turns:

* every collective, over MPI and over TCP, from the moment when the last rank has selected until
  the last rank has settled and written its gradient;
* for each its floor: sockets and poll() move the same bytes between the same peers, step by step;
* Horovod's allgather of the same values and indices, both in flight at once, without summing.

Ranks select k entries of k / density; half of a rank's positions are selected by all ranks. The
result of every repetition is compared with the NumPy reference on the first rank, and all ranks'
results with each other. Ratios are of medians, and of the fastest repetitions: on a shared machine
the latter are closer to the truth. A collective's time is also split, on average over the ranks,
into transfers, the time between them (merging, coding), and the time after them (settling, writing
the gradient).
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
from typing import Annotated, Any, NamedTuple

import numpy as np
import oracle
import typer
from byte_floor import Floor, schedule
from reporting import Result, Row, Timing, write
from virtual_cluster import VirtualCluster

from hvd_sparse import _core
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.ranks.transport import TRANSPORTS
from hvd_sparse.ranks.world import World

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

SECONDS = 1200  # limit of a job
UNTIMED = 3  # repetitions before the timed ones
WORKER = "HVD_SPARSE_CLUSTER_COLLECTIVES_WORKER"  # set for the ranks: the first one's output file
HOROVOD = "Horovod's allgather, two calls"


class Format(NamedTuple):
    """A collective and its wire format."""

    collective: str
    packed: bool


class Method(NamedTuple):
    """A collective, its wire format and the transport between the ranks."""

    format: Format
    transport: str

    @property
    def name(self) -> str:
        """The method's name in the table."""
        packed = ", packed" if self.format.packed else ""
        return f"{self.format.collective}{packed}, {self.transport}"


FORMATS = (
    Format("gtopk", False),
    Format("gtopk", True),
    Format("allgather", False),
    Format("recursive_doubling", False),
    Format("shard_topk", False),
    Format("shard_topk", True),
)
assert {one.collective for one in FORMATS} == set(_core.collectives())


def selected(rank: int, k: int, numel: int) -> oracle.Block:
    """Returns a rank's selection: k integers, so that sums are exact, at half-shared positions."""
    shared = np.random.default_rng(0).choice(numel, size=k // 2, replace=False)
    generator = np.random.default_rng(1 + rank)
    own = generator.choice(numel, size=2 * k, replace=False)
    rest = own[~np.isin(own, shared)][: k - shared.size]
    indices = np.sort(np.concatenate([shared, rest]))
    values = np.rint(1e4 * generator.laplace(size=indices.size)).astype(np.float32)
    values[values == 0] = 1  # a zero is never selected
    return oracle.Block(indices.astype(np.int64), values)


def methods(transports: list[str]) -> list[Method]:
    """Returns the methods that are timed over these transports."""
    return [Method(format_, means) for means in transports for format_ in FORMATS]


class Times(NamedTuple):
    """Times of one repetition on a rank: clock times, processor seconds, seconds of each part."""

    begin: float
    end: float
    processor: float
    transfers: float = 0
    between: float = 0
    after: float = 0


class Rank:
    """This rank's memory, an exchange over each transport, and in it a bucket for each format."""

    def __init__(
        self, world: World, transports: list[str], block: oracle.Block, k: int, numel: int
    ) -> None:
        self._exchanges: dict[str, Exchange] = {}
        for means in transports:
            name = f"k = {k} over {means}"
            self._exchanges[means] = Exchange.between_ranks(world, name=name, transport=means)
        self._block = block
        self._rounds: list[_core.RoundTimes] = []
        self.output = np.zeros(numel, np.float32)
        self._residual = np.zeros(numel, np.float32)
        self._state = np.zeros((1, 4), np.float32)
        self._steps = {method: self._steps_of(method, k, numel) for method in methods(transports)}

    def _steps_of(self, method: Method, k: int, numel: int) -> ArraySteps:
        exchange = self._exchanges[method.transport]
        bucket = exchange.add_bucket(
            method.name,
            numels=[numel],
            segments=[numel],
            max_ks=[k],
            sparsifier=as_sparsifier("top_k"),
            collective=method.format.collective,
            indices="packed" if method.format.packed else "plain",
        )
        return ArraySteps(exchange, bucket)

    def run(self, method: Method, barrier: Callable[[], object]) -> Times:
        """Exchanges once and leaves the sum in `output`."""
        self.output[:] = 0
        self._residual[:] = 0
        self.output[self._block.indices] = self._block.values
        barrier()
        steps = self._steps[method]
        clock = time.process_time()
        steps.begin(residual=Buffer.of(self._residual), states=Buffer.of(self._state))
        steps.launch(0, [Buffer.of(self.output)])
        (stats,) = steps.wait()
        end = time.monotonic()
        processor = time.process_time() - clock - stats.select_seconds
        steps.commit()
        self._rounds = stats.rounds
        transfers = sum(one.end - one.begin for one in stats.rounds)
        between = stats.settle_begin - stats.exchange_begin - transfers
        after = stats.exchange_end - stats.settle_begin
        return Times(stats.select_end, end, max(0, processor), transfers, between, after)

    def sent(self) -> list[tuple[str, int]]:
        """Returns names and bytes of the last step's transfers."""
        return [(one.name, one.bytes_sent) for one in self._rounds]

    def close(self) -> None:
        """Closes the exchanges."""
        for exchange in self._exchanges.values():
            exchange.close()


def measure(transports: list[str], k: int, density: float, repetitions: int) -> dict[str, Any]:
    """Returns times of all methods on all ranks, bytes sent, and true if all results were right."""
    import horovod.torch as hvd
    import torch

    rank, size = hvd.rank(), hvd.size()
    numel = max(2 * k, round(k / density))
    world = World.from_horovod(hvd, hvd.global_process_set)
    blocks = [selected(one, k, numel) for one in range(size)]
    # NumPy merges slowly: one rank compares with it, the others compare hashes with that rank.
    expected = {}
    if rank == 0:
        arrays = [block.to_dense(numel) for block in blocks]
        expected = {one: oracle.sum_of(one.collective, arrays, k) for one in FORMATS}
    floor = Floor(rank, world.allgather_object(os.environ["VIRTUAL_CLUSTER_ADDRESS"]))
    ours = Rank(world, transports, blocks[rank], k, numel)
    values = torch.from_numpy(blocks[rank].values)
    indices = torch.from_numpy(blocks[rank].indices.astype(np.int32))
    times: dict[str, list[Times]] = {}
    sent: dict[str, int] = {HOROVOD: 8 * k * (size - 1)}
    verified = True
    received = hashlib.blake2b()

    for _ in range(UNTIMED + repetitions):
        hvd.barrier()
        begin, clock = time.monotonic(), time.process_time()
        handles = [hvd.allgather_async(values, name="v"), hvd.allgather_async(indices, name="i")]
        gathered = [hvd.synchronize(handle) for handle in handles]
        end, clock = time.monotonic(), time.process_time() - clock
        times.setdefault(HOROVOD, []).append(Times(begin, end, clock))
        verified &= gathered[0].numel() == gathered[1].numel() == size * k
        for method in methods(transports):
            times.setdefault(method.name, []).append(ours.run(method, hvd.barrier))
            received.update(ours.output)
            if (want := expected.get(method.format)) is not None:
                verified &= np.array_equal(ours.output, want)
            steps = schedule(rank, world.allgather_object(ours.sent()))
            sent[method.name] = sum(bytes_ for _, bytes_ in ours.sent())
            floor.reserve(steps)
            hvd.barrier()
            begin, clock = time.monotonic(), time.process_time()
            floor.run(steps)
            end, clock = time.monotonic(), time.process_time() - clock
            times.setdefault(f"{method.name}: sockets", []).append(Times(begin, end, clock))
            verified &= floor.right()
    floor.close()
    ours.close()

    everybody = np.array(
        world.allgather_object([[tuple(one) for one in all_[UNTIMED:]] for all_ in times.values()])
    )
    seconds = everybody[:, :, :, 1].max(0) - everybody[:, :, :, 0].max(0)
    return {
        "seconds": dict(zip(times, seconds.tolist(), strict=True)),
        "parts": dict(zip(times, everybody[:, :, :, 2:].mean(0).tolist(), strict=True)),
        "sent": sent,
        "right": all(world.allgather_object(bool(verified)))
        and len(set(world.allgather_object(received.hexdigest()))) == 1,
    }


def work(
    transports: list[str], ks: list[int], density: float, repetitions: int, file: Path
) -> None:
    """Runs one rank's part; the first one writes the results."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.set_num_threads(1)
    found = {str(k): measure(transports, k, density, repetitions) for k in ks}
    if hvd.rank() == 0:
        write(file, found)


def rows_of(hosts: int, k: int, found: dict[str, Any]) -> list[Row]:
    """Returns rows of all methods, with their ratios to the floor and to Horovod's allgather."""
    timings = {name: Timing.of(times) for name, times in found["seconds"].items()}
    best = {name: 1e3 * min(times) for name, times in found["seconds"].items()}
    processor, *parts = (
        {
            name: 1e3 * statistics.median(one[i] for one in all_)
            for name, all_ in found["parts"].items()
        }
        for i in range(4)
    )
    rows = []
    for name, timing in timings.items():
        facts: dict[str, float | int | str] = {
            "fastest": best[name],
            "CPU": hosts * processor[name],
        }
        floor = f"{name}: sockets"
        if floor in timings:
            facts |= {
                "x": timing.median / timings[floor].median,
                "x, fastest": best[name] / best[floor],
                "moving": parts[0][name],
                "between": parts[1][name],
                "after": parts[2][name],
            }
        facts |= {"of Horovod's": timing.median / timings[HOROVOD].median}
        facts |= {"bytes": found["sent"][name]} if name in found["sent"] else {}
        rows.append(Row(f"P = {hosts}, k = {k:,}: {name}", timing, facts))
    return rows


@app.command()
def main(
    hosts: Annotated[list[int] | None, typer.Option(help="powers of two; may be repeated")] = None,
    k: Annotated[list[int] | None, typer.Option(help="entries; may be given repeatedly")] = None,
    density: Annotated[float, typer.Option(help="k as a fraction of the bucket")] = 0.1,
    rate: Annotated[str, typer.Option(help="of every link in each direction")] = "1gbit",
    latency: Annotated[float, typer.Option(help="milliseconds of a round trip")] = 0.0,
    transport: Annotated[
        list[str] | None, typer.Option(help="mpi or tcp; both unless given")
    ] = None,
    repetitions: Annotated[int, typer.Option(min=2, help="timed, of each")] = 20,
    json: Annotated[Path | None, typer.Option(help="also write the result here")] = None,
) -> None:
    """Times every collective over a virtual cluster's links, against sockets."""
    counts, ks = hosts or [2, 4, 8], k or [25_600, 256_000]
    transports = transport or list(TRANSPORTS)
    if WORKER in os.environ:
        work(transports, ks, density, repetitions, Path(os.environ[WORKER]))
        return
    if any(count < 2 or count & (count - 1) for count in counts):
        raise typer.BadParameter(f"hosts must be powers of two from 2 on, got {counts}")
    if unknown := set(transports) - set(TRANSPORTS):
        raise typer.BadParameter(f"transport must be one of {TRANSPORTS}, got {sorted(unknown)}")
    options = [f"--k={one}" for one in ks] + [f"--transport={one}" for one in transports]
    options += [f"--density={density}", f"--repetitions={repetitions}"]
    results = []
    for count in counts:
        with (
            VirtualCluster(count, rate, latency=latency / 1e3) as cluster,
            TemporaryDirectory() as folder,
        ):
            file = Path(folder) / "found.json"
            command = [sys.executable, str(Path(__file__).resolve()), *options]
            job = cluster.run(command, env={WORKER: str(file)}, timeout=SECONDS)
            found = json_module.loads(file.read_text())
        settings = {
            "hosts": count, "rate": rate, "latency": latency, "density": density,
            "repetitions": repetitions, "busy": round(job.busy, 2),
            "load": round(os.getloadavg()[0], 1),
        }  # fmt: skip
        result = Result(
            ", ".join(f"{name} {value}" for name, value in settings.items()),
            [row for one in ks for row in rows_of(count, one, found[str(one)])],
            settings,
            all(found[str(one)]["right"] for one in ks),
        )
        result.show()  # at once: the next cluster may fail
        results.append(result)
        if json is not None:
            write(json, [result.as_json() for result in results])
    if not all(result.verified for result in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
