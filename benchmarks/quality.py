"""Measures how much of the sum each collective applies, in one step of ranks that are threads.

    python benchmarks/quality.py

Every rank selects the k largest entries of its gradient, whose entries follow Laplace's
distribution; the gradients of two ranks are half correlated, or independent. Two figures describe
the applied sum:

* selected: its energy, as a multiple of the energy of the k largest entries of the exact sum of all
  selected entries. Collectives that apply more than k entries have values above 1.
* gradient: how much of the sum g of the whole gradients it explains, |g|^2 - |g - applied|^2, as a
  multiple of that of the k largest entries of g. Entries that a rank did not select are missing
  from every collective's sum.

Nothing is timed. Gradients are integers, and all results are compared with the NumPy reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import oracle
import typer
from reporting import Result, Row, write

from hvd_sparse import _core
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

SCALE = 2000  # factor of the integers: sums of 32 ranks stay below 2^24


@dataclass(frozen=True)
class Method:
    """A collective with its options, and its NumPy reference."""

    collective: str
    expected: Callable[[Sequence[oracle.Block], int], oracle.Reduced]
    slack: float = 1.0

    @property
    def name(self) -> str:
        """The method's name in the table."""
        return f"gtopk, slack {self.slack:g}" if self.collective == "gtopk" else self.collective


def gtopk(slack: float) -> Method:
    """Returns gtopk with a slack."""
    return Method("gtopk", lambda blocks, k: oracle.gtopk(blocks, k, slack), slack)


METHODS = (
    *(gtopk(slack) for slack in (1.0, 1.5, 2.0, 4.0)),
    Method("allgather", lambda blocks, k: oracle.allgather(blocks)),
    Method("recursive_doubling", lambda blocks, k: oracle.recursive_doubling(blocks)),
)
# shard_topk sums what waits with the owners of shards, too.
assert {method.collective for method in METHODS} | {"shard_topk"} == set(_core.collectives())


class Figures(NamedTuple):
    """Results of one method; `verified` is true if all ranks hold the reference's sum."""

    selected: float
    gradient: float
    verified: bool


def gradients_of(ranks: int, numel: int, correlated: bool, draw: int) -> list[np.ndarray]:
    """Returns one integer-valued float32 gradient for each rank."""
    shared = np.random.default_rng([draw, 0]).laplace(size=numel) if correlated else 0.0
    return [
        np.rint(SCALE * (shared + np.random.default_rng([draw, 1, rank]).laplace(size=numel)))
        .astype(np.float32)
        for rank in range(ranks)
    ]  # fmt: skip


def exchange(method: Method, gradients: list[np.ndarray], k: int) -> list[np.ndarray]:
    """Returns the sum that each rank applies, over loopback."""
    numel = gradients[0].size
    world = _core.LoopbackWorld(len(gradients))

    def run(rank: int) -> np.ndarray:
        ranks = Exchange.over_loopback(world, rank)
        output, residual = gradients[rank].copy(), np.zeros(numel, np.float32)
        state = np.zeros((1, 4), np.float32)
        bucket = ranks.add_bucket(
            method.name,
            numels=[numel],
            segments=[numel],
            max_ks=[k],
            sparsifier=as_sparsifier("top_k"),
            collective=method.collective,
            collective_options={"slack": method.slack},
        )
        ArraySteps(ranks, bucket).run(
            [Buffer.of(output)], residual=Buffer.of(residual), states=Buffer.of(state)
        )
        ranks.close()
        return output

    with ThreadPoolExecutor(len(gradients)) as threads:
        return list(threads.map(run, range(len(gradients))))


def energy(array: np.ndarray) -> float:
    """Returns the sum of the squares."""
    return float(np.square(array, dtype=np.float64).sum())


def judge(gradients: list[np.ndarray], k: int) -> dict[str, Figures]:
    """Runs all methods on the same gradients."""
    numel = gradients[0].size
    blocks = [oracle.top_k(gradient, k) for gradient in gradients]
    best = energy(oracle.keep_top_k(oracle.allgather(blocks).block, k).values)
    whole = np.sum(gradients, axis=0, dtype=np.float64)
    largest = np.sort(np.abs(whole))[-k:]
    figures = {}
    for method in METHODS:
        outputs = exchange(method, gradients, k)
        applied = outputs[0]
        expected = method.expected(blocks, k).block.to_dense(numel)
        figures[method.name] = Figures(
            energy(applied) / best,
            (energy(whole) - energy(whole - applied)) / energy(largest),
            all(np.array_equal(output, expected) for output in outputs),
        )
    return figures


@app.command()
def main(
    ranks: Annotated[list[int] | None, typer.Option(help="may be given repeatedly")] = None,
    k: Annotated[int, typer.Option(help="entries that each rank selects")] = 2_560,
    density: Annotated[float, typer.Option(help="k as a fraction of the gradient")] = 0.01,
    draws: Annotated[int, typer.Option(min=1, help="gradients to average over")] = 3,
    json: Annotated[Path | None, typer.Option(help="also write the result here")] = None,
) -> None:
    """Prints the fraction of the exact top-k of the sum that each collective applies."""
    sizes = ranks or [4, 8, 16, 32]
    results = [tabulate(sizes, k, density, draws, correlated) for correlated in (True, False)]
    for result in results:
        result.show()
    if json is not None:
        write(json, [result.as_json() for result in results])
    if not all(result.verified for result in results):
        raise typer.Exit(1)


def tabulate(sizes: Sequence[int], k: int, density: float, draws: int, correlated: bool) -> Result:
    """Returns one table: methods by numbers of ranks, averaged over the draws."""
    numel = max(k, round(k / density))
    facts: dict[str, dict[str, float | int | str]] = {method.name: {} for method in METHODS}
    verified = True
    for size in sizes:
        figures = [judge(gradients_of(size, numel, correlated, draw), k) for draw in range(draws)]
        for method in METHODS:
            mine = [one[method.name] for one in figures]
            verified &= all(one.verified for one in mine)
            facts[method.name] |= {
                f"P = {size}: selected": float(np.mean([one.selected for one in mine])),
                f"P = {size}: gradient": float(np.mean([one.gradient for one in mine])),
            }
    kind = "half correlated" if correlated else "independent"
    return Result(
        f"energy applied, {kind} gradients, k = {k:,}, {density:g} of the gradient",
        [Row(name, None, values) for name, values in facts.items()],
        {"ranks": list(sizes), "k": k, "density": density, "draws": draws, "gradients": kind},
        verified,
    )


if __name__ == "__main__":
    app()
