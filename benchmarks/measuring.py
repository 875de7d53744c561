"""Times measuring the network, before an adaptive compression makes a plan.

    mpirun -np 4 python benchmarks/measuring.py
    python benchmarks/virtual_cluster.py --hosts 16 --rate 1gbit -- python benchmarks/measuring.py

The second, run as root, has the aim: 16 ranks with links of 1 Gb/s, in less than 2 seconds. First
an optimizer is made, which measures the network and each machine; then the network is measured
repeatedly, as `replan` does. Times are those of the slowest rank. All ranks must find the same
network, each time.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from reporting import Row, Timing, report

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

AIM_SECONDS = 2.0


@app.command()
def main(
    repetitions: Annotated[int, typer.Option(min=2, help="of measuring the network")] = 5,
    json: Annotated[Path | None, typer.Option(help="also write the result here")] = None,
) -> None:
    """Times measuring the network, on the ranks of a job."""
    import horovod.torch as hvd
    import torch

    from hvd_sparse.torch import LAGS

    hvd.init()
    if hvd.size() < 2:
        raise typer.BadParameter("a rank that is alone has no network: run this under mpirun")
    torch.set_num_threads(1)
    parameter = torch.nn.Parameter(torch.zeros(1000, 1000))
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    def longest(seconds: float) -> float:
        every = hvd.allgather(torch.tensor([seconds], dtype=torch.float64), name="seconds")
        return float(every.max())

    hvd.barrier()
    begin = time.perf_counter()
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=[("weight", parameter)], compression=LAGS
    )
    making = longest(time.perf_counter() - begin)
    took, verified = [], True
    for _ in range(repetitions):
        hvd.barrier()
        begin = time.perf_counter()
        optimizer.exchange.replan()
        took.append(longest(time.perf_counter() - begin))
        tuned = optimizer.exchange.tuning
        assert tuned is not None  # there are several ranks, and LAGS is adaptive
        found = tuned.network
        verified &= len(set(hvd.allgather_object(repr(found), name="found"))) == 1
    if hvd.rank() == 0:
        facts: dict[str, float | int | str] = {
            "longest, s": max(took),
            "aim, s": AIM_SECONDS,
            "alpha, us": 1e6 * found.link.alpha,
            "rate, Mb/s": 8e-6 / found.link.beta,
            "dense alpha, us": 1e6 * found.dense.alpha,
            "dense rate, Mb/s": 8e-6 / found.dense.beta,
            "making an optimizer, s": making,
        }
        rows = [Row("the network", Timing.of(took), facts)]
        settings = {"ranks": hvd.size(), "repetitions": repetitions}
        title = f"measuring, {hvd.size()} ranks"
        report(title, rows, settings=settings, verified=verified, file=json)
    hvd.barrier()
    if not verified:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
