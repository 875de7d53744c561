"""Measures the bits that gradients take on the wire, for every type of values, on real ones.

    python benchmarks/traffic.py

The example models are trained for some steps, dense, and their gradients recorded. Ranks that are
threads then sum these streams layer by layer, with error feedback: a rank takes every P-th step, so
that the ranks have gradients of different batches. A code of few bits depends on what error
feedback has left behind, so bits are counted from the second half of the steps. All entries are
summed by shard_sum; SBC and TopK are exchanged by allgather.

bits     per entry of the model in a message, of all layers, headers left out. A rank sends each
         entry 2 (P - 1) / P times by shard_sum, as by any dense sum, and its own block P - 1 times
         by allgather.
less     32 / bits: how many times shorter than float32 values of all entries
per sent bits of an entry that was selected: its position and its value

Each step is verified: all ranks apply the same bits, and what is applied and what is left in the
residuals together are the gradients and what was left before.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from recordings import RECORDERS
from reporting import Result, Row, write

from hvd_sparse import _core
from hvd_sparse.compression import SBC, Compression, Dense, ThreeLC, TopK, Wire
from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.planning.plan import entries_to_send

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

ROUNDING = 1e-5  # of the largest sum: float32 adds P gradients and P residuals


COMPRESSIONS: dict[str, Compression] = {
    **{values: Dense(values=values) for values in ("float32", "bfloat16", "int8", "int4")},
    **{f"ternary, scale {scale:g}": ThreeLC(scale=scale) for scale in (1.0, 1.5, 1.75, 1.9)},
    "TopK .01, packed": TopK(density=0.01, wire=Wire(indices="packed", values="float32")),
    "SBC .01": SBC(density=0.01),
    "SBC .001": SBC(density=0.001),
}


@dataclass
class Traffic:
    """The messages of all ranks, counted, and the verdict on their steps.

    Attributes:
        bits: The bits of all messages, without headers.
        entries: Entries of the model that they stand for.
        selected: Entries among them that were selected; all, where nothing is.
        right: True if all steps were right.
    """

    bits: float = 0
    entries: int = 0
    selected: int = 0
    right: bool = True

    def __iadd__(self, other: Traffic) -> Traffic:
        self.bits += other.bits
        self.entries += other.entries
        self.selected += other.selected
        self.right &= other.right
        return self


class Rank:
    """A rank that sums one layer's gradients."""

    def __init__(
        self, world: _core.LoopbackWorld, rank: int, numel: int, compression: Compression
    ) -> None:
        self._exchange = Exchange.over_loopback(world, rank)
        self.gradient, self.residual = np.zeros((2, numel), np.float32)
        self._state = np.zeros((1, 4), np.float32)
        bucket = self._exchange.add_bucket(
            "layer",
            numels=[numel],
            segments=[numel],
            max_ks=[entries_to_send(numel, compression.density)],
            sparsifier=as_sparsifier(compression.sparsifier),
            collective=compression.collective_name,
            collective_options=compression.collective_options,
            indices=compression.indices,
            values=compression.values,
        )
        self._steps = ArraySteps(self._exchange, bucket)

    def step(self, gradient: np.ndarray) -> _core.BucketStats:
        """Sums a gradient."""
        self.gradient[:] = gradient
        return self._steps.run(
            [Buffer.of(self.gradient)],
            residual=Buffer.of(self.residual),
            states=Buffer.of(self._state),
        )

    def close(self) -> None:
        """Closes the exchange."""
        self._exchange.close()


def traffic_of(stream: list[np.ndarray], ranks: int, compression: Compression) -> Traffic:
    """Returns what the ranks send of one layer in the second half of the steps."""
    numel = stream[0].size
    world = _core.LoopbackWorld(ranks, 60.0)
    # In a dense sum each rank sends P - 1 shares of the gradient, and gets as many sums back.
    messages = ranks * (ranks - 1) * (2 if compression.collective_name == SHARD_SUM else 1)
    each = numel / ranks if compression.collective_name == SHARD_SUM else numel
    total = Traffic()
    with ThreadPoolExecutor(ranks) as threads:
        members = list(
            threads.map(lambda rank: Rank(world, rank, numel, compression), range(ranks))
        )
        turns = len(stream) // ranks
        for turn in range(turns):
            given = stream[turn * ranks : (turn + 1) * ranks]
            before = sum(given, np.zeros(numel)) + sum(member.residual for member in members)
            steps = list(threads.map(Rank.step, members, given))
            after = members[0].gradient + sum(m.residual.astype(np.float64) for m in members)
            total.right &= all(
                m.gradient.tobytes() == members[0].gradient.tobytes() for m in members
            )
            total.right &= bool(np.abs(after - before).max() <= ROUNDING * np.abs(before).max())
            if turn >= turns // 2:
                sent = sum(step.bytes_sent for step in steps)
                total.bits += 8 * (sent - messages * _core.header_bytes)
                total.entries += round(messages * each)
                total.selected += (ranks - 1) * sum(step.selected for step in steps)
        for member in members:
            member.close()
    return total


@app.command()
def main(
    steps: Annotated[int, typer.Option(min=8, help="recorded, of each model")] = 200,
    ranks: Annotated[int, typer.Option(min=2)] = 4,
    seed: int = 0,
    json: Annotated[Path | None, typer.Option(help="also write the result here")] = None,
) -> None:
    """Measures the bits that gradients take on the wire."""
    rows, verified = [], True
    for model, record in RECORDERS.items():
        layers = [[one.numpy() for one in layer] for layer in record(steps, seed).values()]
        for name, compression in COMPRESSIONS.items():
            total = Traffic()
            for stream in layers:
                total += traffic_of(stream, ranks, compression)
            verified &= total.right
            bits = total.bits / total.entries
            facts = {"bits": bits, "less": 32 / bits}
            if compression.collective_name != SHARD_SUM:
                facts["per sent"] = total.bits / total.selected
            rows.append(Row(f"{model}: {name}", None, facts))
    settings = {"steps": steps, "ranks": ranks, "seed": seed}
    title = ", ".join(f"{name} {value}" for name, value in settings.items())
    result = Result(title, rows, settings, verified)
    result.show()
    if json is not None:
        write(json, [result.as_json()])
    if not verified:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
