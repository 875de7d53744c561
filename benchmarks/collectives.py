"""Sparse collectives against Horovod's allgather of the same entries, side by side in one job.

    horovodrun -np 4 python benchmarks/collectives.py

Every rank selects the k largest entries of its gradient; the gradients of two ranks are half
correlated. Times run from when the last rank has selected until the last rank has finished:

* ours: exchanging a bucket, settling the residual and writing the sum into the gradient;
* Horovod's: allgather of the values and of the int32 indices, both in flight at once, without
  summing the result.

The methods take turns. Loopback runs as many ranks as threads of rank 0, while the others sleep.
All ranks must run on one machine, whose clock they share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import horovod.torch as hvd
import numpy as np
import oracle
import torch
import typer
from reporting import Row, Timing, report

from hvd_sparse import _core
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.ranks.transport import TRANSPORTS
from hvd_sparse.ranks.world import World

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

UNTIMED = 3  # repetitions before the timed ones


def integer_gradient(numel: int, rank: int) -> np.ndarray:
    """Returns integers, so that sums are exact; half of each is the same on every rank."""
    shared = np.random.default_rng(0).standard_normal(numel, dtype=np.float32)
    own = np.random.default_rng(1 + rank).standard_normal(numel, dtype=np.float32)
    return np.rint(1e4 * (shared + own)).astype(np.float32)


class Interval(NamedTuple):
    """Times at which a rank had selected, and at which it had the result."""

    begin: float
    end: float


class Rank:
    """One rank of an exchange, with a bucket for each collective."""

    def __init__(self, exchange: Exchange, gradient: np.ndarray, k: int) -> None:
        self._gradient = gradient
        self.output = np.zeros_like(gradient)
        self._residual = np.zeros_like(gradient)
        self._state = np.zeros((1, 4), np.float32)
        self._steps = {
            collective: ArraySteps(
                exchange,
                exchange.add_bucket(
                    collective,
                    numels=[gradient.size],
                    segments=[gradient.size],
                    max_ks=[k],
                    sparsifier=as_sparsifier("top_k"),
                    collective=collective,
                ),
            )
            for collective in _core.collectives()
        }

    def run(
        self, collective: str, barrier: Callable[[], object]
    ) -> tuple[Interval, _core.BucketStats]:
        """Exchanges once and leaves the sum in `output`."""
        self.output[:] = self._gradient
        self._residual[:] = 0
        barrier()
        start = time.perf_counter()
        steps = self._steps[collective]
        steps.begin(residual=Buffer.of(self._residual), states=Buffer.of(self._state))
        steps.launch(0, [Buffer.of(self.output)])
        (stats,) = steps.wait()
        interval = Interval(start + stats.select_seconds, time.perf_counter())
        steps.commit()
        return interval, stats


class Loopback:
    """All ranks as threads of this process."""

    def __init__(self, gradients: list[np.ndarray], k: int) -> None:
        size = len(gradients)
        world = _core.LoopbackWorld(size)
        self._ranks = [
            Rank(Exchange.over_loopback(world, rank), gradients[rank], k) for rank in range(size)
        ]
        self._barrier = threading.Barrier(size)

    def run(self, collective: str) -> tuple[Interval, _core.BucketStats, list[np.ndarray]]:
        """Returns the interval of all ranks, statistics of one, and the sum on each rank."""
        done: list[tuple[Interval, _core.BucketStats]] = []

        def run(rank: Rank) -> None:
            done.append(rank.run(collective, self._barrier.wait))

        threads = [threading.Thread(target=run, args=(rank,)) for rank in self._ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        intervals = [interval for interval, _ in done]
        interval = Interval(max(i.begin for i in intervals), max(i.end for i in intervals))
        return interval, done[0][1], [rank.output for rank in self._ranks]


def horovod_allgather(
    block: oracle.Block, name: str
) -> tuple[Interval, torch.Tensor, torch.Tensor]:
    """Returns the interval, and all ranks' values and indices."""
    values = torch.from_numpy(block.values)
    indices = torch.from_numpy(block.indices.astype(np.int32))
    hvd.barrier()
    start = time.perf_counter()
    handles = [
        hvd.allgather_async(values, name=f"{name}.values"),
        hvd.allgather_async(indices, name=f"{name}.indices"),
    ]
    gathered_values, gathered_indices = (hvd.synchronize(handle) for handle in handles)
    return Interval(start, time.perf_counter()), gathered_values, gathered_indices


def seconds(intervals: list[Interval]) -> list[float]:
    """Returns, per repetition, the seconds from the last rank's begin to the last rank's end."""
    everybody = hvd.allgather(torch.tensor([intervals], dtype=torch.float64), name="intervals")
    last = everybody.max(dim=0).values
    return (last[:, 1] - last[:, 0]).tolist()


def everywhere(verified: bool) -> bool:
    """Returns true if `verified` is true on all ranks."""
    return bool(hvd.allgather(torch.tensor([int(verified)]), name="verified").all())


def measure(
    k: int, density: float, repetitions: int, exchanges: dict[str, Exchange]
) -> tuple[list[Row], bool]:
    """Returns rows of all methods with k entries of k / density, and true if all were right."""
    numel = max(k, round(k / density))
    gradients = [integer_gradient(numel, rank) for rank in range(hvd.size())]
    blocks = [oracle.top_k(gradient, k) for gradient in gradients]
    expected = {name: oracle.sum_of(name, gradients, k) for name in _core.collectives()}
    ranks = {
        means: Rank(exchange, gradients[hvd.rank()], k) for means, exchange in exchanges.items()
    }
    loopback = Loopback(gradients, k) if hvd.rank() == 0 else None
    own = blocks[hvd.rank()]

    intervals: dict[str, list[Interval]] = {}
    sent: dict[str, int] = {}
    verified = True

    def note(name: str, took: Interval, bytes_sent: int) -> None:
        intervals.setdefault(name, []).append(took)
        sent[name] = bytes_sent

    for _ in range(UNTIMED + repetitions):
        took, values, indices = horovod_allgather(own, f"k{k}")
        total = torch.zeros(numel).index_add_(0, indices.long(), values)
        verified &= np.array_equal(total.numpy(), expected["allgather"])
        note("Horovod's allgather, two calls", took, 8 * k * (hvd.size() - 1))
        for collective in expected:
            for means, rank in ranks.items():
                took, stats = rank.run(collective, hvd.barrier)
                verified &= np.array_equal(rank.output, expected[collective])
                note(f"{collective} over {means.upper()}", took, stats.bytes_sent)
        for collective in expected:
            name = f"{collective} over loopback"
            hvd.barrier()
            if loopback is None:
                note(name, Interval(0, 0), 0)
                continue
            took, stats, outputs = loopback.run(collective)
            verified &= all(np.array_equal(output, expected[collective]) for output in outputs)
            note(name, took, stats.bytes_sent)

    timings = {name: Timing.of(seconds(all_[UNTIMED:])) for name, all_ in intervals.items()}
    baseline = timings["Horovod's allgather, two calls"].median
    rows = [
        Row(
            f"k = {k:,}: {name}",
            timing,
            {
                "fraction of Horovod's": timing.median / baseline,
                "bytes sent per rank": sent[name],
                "MB/s": 1e-3 * sent[name] / timing.median,
            },
        )
        for name, timing in timings.items()
    ]
    return rows, everywhere(verified)


@app.command()
def main(
    k: Annotated[list[int] | None, typer.Option(help="entries; may be given repeatedly")] = None,
    density: Annotated[float, typer.Option(help="k as a fraction of the gradient")] = 0.1,
    repetitions: Annotated[int, typer.Option(min=2, help="timed, of each")] = 30,
    json: Annotated[Path | None, typer.Option(help="also write the result here")] = None,
) -> None:
    """Times every collective over MPI, TCP and loopback against Horovod's allgather."""
    ks = k or [2_560, 25_600, 256_000]
    hvd.init()
    torch.set_num_threads(1)
    if hvd.local_size() != hvd.size():
        raise typer.BadParameter("all ranks must run on one machine")
    world = World.from_horovod(hvd, hvd.global_process_set)
    rows, verified = [], True
    for one in ks:
        exchanges = {
            means: Exchange.between_ranks(world, name=f"k = {one} over {means}", transport=means)
            for means in TRANSPORTS
        }
        more, right = measure(one, density, repetitions, exchanges)
        rows += more
        verified &= right
        for exchange in exchanges.values():
            exchange.close()
    if hvd.rank() == 0:
        report(
            f"{hvd.size()} ranks, k = {density:g} of the gradient",
            rows,
            settings={"ranks": hvd.size(), "density": density, "repetitions": repetitions},
            verified=verified,
            file=json,
        )
    if not verified:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
