"""Measures the bits that dense values take on real gradients, for every type of values.

    python benchmarks/traffic.py

The example models are trained for some steps, dense, and their gradients recorded. Ranks that are
threads then sum these streams by shard_sum, layer by layer, with error feedback: a rank takes every
P-th step, so that the ranks have gradients of different batches. A code of few bits depends on
what error feedback has left behind, so bits are counted from the second half of the steps.

bits     per value that a rank sends, of all layers, headers left out
less     32 / bits: how many times less traffic than float32

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
from hvd_sparse.collectives import SHARD_SUM
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.sparsifiers import as_sparsifier

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

ROUNDING = 1e-5  # of the largest sum: float32 adds P gradients and P residuals


@dataclass(frozen=True)
class Width:
    """A type of values, and the sparsity of ternary ones."""

    values: str
    sparsity: float = 1.0

    @property
    def name(self) -> str:
        """The type's name in the table."""
        return f"ternary, sparsity {self.sparsity:g}" if self.values == "ternary" else self.values


WIDTHS = (
    *(Width(values) for values in ("float32", "bfloat16", "int8", "int4")),
    *(Width("ternary", sparsity) for sparsity in (1.0, 1.5, 1.75, 1.9)),
)


class Rank:
    """A rank that sums one layer's gradients."""

    def __init__(self, world: _core.LoopbackWorld, rank: int, numel: int, width: Width) -> None:
        self._exchange = Exchange.over_loopback(world, rank)
        self.gradient, self.residual = np.zeros((2, numel), np.float32)
        self._state = np.zeros((1, 4), np.float32)
        self._numel = numel
        self._bucket = self._exchange.add_bucket(
            "layer",
            numels=[numel],
            segments=[numel],
            max_ks=[numel],
            sparsifier=as_sparsifier("top_k"),
            collective=SHARD_SUM,
            collective_options={"sparsity": width.sparsity},
            values=width.values,
        )

    def step(self, gradient: np.ndarray) -> int:
        """Sums a gradient; returns the bytes sent."""
        self.gradient[:] = gradient
        self._exchange.start(
            self._bucket,
            [Buffer.of(self.gradient)],
            residual=Buffer.of(self.residual),
            states=Buffer.of(self._state),
            ks=[self._numel],
            decays=[1.0],
        )
        stats = self._exchange.wait(self._bucket)
        self._exchange.commit()
        return stats.bytes_sent

    def close(self) -> None:
        """Closes the exchange."""
        self._exchange.close()


def bits_of(stream: list[np.ndarray], ranks: int, width: Width) -> tuple[float, float, bool]:
    """Returns bits and values that the ranks have sent, and true if all steps were right."""
    numel = stream[0].size
    world = _core.LoopbackWorld(ranks, 60.0)
    right, sent, values = True, 0, 0
    with ThreadPoolExecutor(ranks) as threads:
        members = list(threads.map(lambda rank: Rank(world, rank, numel, width), range(ranks)))
        turns = len(stream) // ranks
        for turn in range(turns):
            given = stream[turn * ranks : (turn + 1) * ranks]
            before = sum(given, np.zeros(numel)) + sum(member.residual for member in members)
            counts = list(threads.map(Rank.step, members, given))
            after = members[0].gradient + sum(m.residual.astype(np.float64) for m in members)
            right &= all(m.gradient.tobytes() == members[0].gradient.tobytes() for m in members)
            right &= bool(np.abs(after - before).max() <= ROUNDING * np.abs(before).max())
            if turn >= turns // 2:
                sent += sum(counts) - 2 * ranks * (ranks - 1) * _core.header_bytes  # of one chunk
                values += 2 * (ranks - 1) * numel
        for member in members:
            member.close()
    return 8.0 * sent, float(values), right


@app.command()
def main(
    steps: Annotated[int, typer.Option(min=8, help="recorded, of each model")] = 200,
    ranks: Annotated[int, typer.Option(min=2)] = 4,
    seed: int = 0,
    json: Annotated[Path | None, typer.Option(help="also write the result here")] = None,
) -> None:
    """Measures the bits that dense values take on real gradients."""
    rows, verified = [], True
    for model, record in RECORDERS.items():
        layers = [[one.numpy() for one in layer] for layer in record(steps, seed).values()]
        for width in WIDTHS:
            totals = [bits_of(stream, ranks, width) for stream in layers]
            bits = sum(one[0] for one in totals) / sum(one[1] for one in totals)
            verified &= all(one[2] for one in totals)
            rows.append(Row(f"{model}: {width.name}", None, {"bits": bits, "less": 32 / bits}))
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
