"""Cost of HVD_SPARSE_CHECK=1 on the ranks themselves: python benchmarks/checks.py.

Two ranks, which are threads, exchange a step of small buckets repeatedly, with and without checks
in turn. The result is processor time of all threads together, which does not depend on the network
or the load of the machine; a network adds one round for each bucket.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np

from hvd_sparse import _core
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer
from tests import laws

RANKS = 2


def seconds_per_bucket(*, checks: bool, buckets: int, numel: int, steps: int) -> float:
    """Returns the processor seconds that a rank spends on a bucket; the result is verified."""
    world, barrier = _core.LoopbackWorld(RANKS), Barrier(RANKS)

    def run(rank: int) -> tuple[float, laws.Step]:
        exchange = Exchange.over_loopback(world, rank, checks=checks)
        own = laws.integer_gradient(numel, rank=rank, step=0)
        gradients, residual = np.tile(own, (buckets, 1)), np.zeros((buckets, numel), np.float32)
        states = np.zeros((buckets, 4), np.float32)
        steps_of = ArraySteps(
            exchange,
            *(
                exchange.add_bucket(
                    "top_k-gtopk",
                    numels=[numel],
                    segments=[numel],
                    max_ks=[max(1, math.ceil(0.01 * numel))],
                    sparsifier=as_sparsifier("top_k"),
                    collective="gtopk",
                )
                for _ in range(buckets)
            ),
        )

        def step() -> None:
            gradients[:] = own
            steps_of.begin(residual=Buffer.of(residual.ravel()), states=Buffer.of(states))
            for op, gradient in enumerate(gradients):
                steps_of.launch(op, [Buffer.of(gradient)])
            steps_of.wait()
            steps_of.commit()

        step()
        barrier.wait()
        start = time.process_time()
        for _ in range(steps):
            step()
        barrier.wait()
        spent = time.process_time() - start
        before = residual[0].copy()
        step()
        exchange.close()
        none = np.zeros(numel)
        last = laws.Step(own, before, residual[0], gradients[0].astype(np.float64), none, none)
        return spent / (steps * buckets * RANKS), last

    with ThreadPoolExecutor(RANKS) as threads:
        results = list(threads.map(run, range(RANKS)))
    laws.check_laws([[last] for _, last in results])
    return results[0][0]


def main() -> None:
    """Prints the medians, and the quartiles of the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buckets", type=int, default=20)
    parser.add_argument("--numel", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=21)
    args = parser.parse_args()
    size = {"buckets": args.buckets, "numel": args.numel, "steps": args.steps}
    without, with_checks = [], []
    for _ in range(args.repeat):
        without.append(1e6 * seconds_per_bucket(checks=False, **size))
        with_checks.append(1e6 * seconds_per_bucket(checks=True, **size))
    low, middle, high = statistics.quantiles(
        (b - a for a, b in zip(without, with_checks, strict=True)), n=4
    )
    print(
        f"a bucket of {args.numel} entries, us of processor time on a rank: "
        f"{statistics.median(without):.0f} without checks, {statistics.median(with_checks):.0f} "
        f"with them; difference {middle:.0f} ({low:.0f} to {high:.0f})"
    )


if __name__ == "__main__":
    main()
