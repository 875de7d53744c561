"""Measures count and quality of every sparsifier's selections on real gradients.

    python benchmarks/streams.py --plot selection.png --markdown

The example models are trained for some steps, dense, and their gradients recorded. Each method then
follows the stream of each layer with a residual of its own (error feedback; all selected entries
are delivered, as to a lone rank). Methods come from hvd_sparse.compression.sparsifiers, and as
baselines from published.py. hard_threshold needs a constant, which a user would have tuned: it is
the median threshold of exact top-k in the layer, over the last 100 steps of a dry run.

count/k         number of selected entries over the number asked for, k = ceil(density * entries)
energy          ||selected||^2 / ||TopK(u)||^2, where u is the method's own residual after error
                feedback and TopK its exact top-k: 1 is as good as exact top-k; more than k entries
                may hold more
in bounds       share of the steps of all layers in which count was within [2k/3, 4k/3]
bounds kept     yes if Sparsifier.bounds held in every step of every layer

Means are over all steps, and over layers in proportion to k. The worst layer is the one whose mean
count/k is farthest from 1, as a factor. Every step is verified: entries, values, and that nothing
is lost.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import numpy as np
import torch
import typer
from contenders import Core, Published, Selecting, Size
from matplotlib import pyplot as plt
from published import FEW, MANY, PUBLISHED
from recordings import RECORDERS, Recording
from reporting import Result, Row, write

from hvd_sparse.compression.sparsifiers import SPARSIFIERS, HardThreshold, Sparsifier, as_sparsifier

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

DENSITIES = (0.01, 0.001)
TUNED_OVER = 100  # steps
SMALL_K = 10  # for smaller k, a single entry is more than 10 %


@dataclass(frozen=True)
class Trace:
    """One method's selections from one layer, step by step."""

    layer: str
    k: int
    counts: list[int]
    energy: list[float]
    verified: bool

    @property
    def ratios(self) -> list[float]:
        """count / k of each step."""
        return [count / self.k for count in self.counts]


def follow(method: Selecting, layer: str, gradients: Sequence[torch.Tensor]) -> Trace:
    """Runs a method on the stream of a layer."""
    method.slabs = [method.size.slab()]
    k = method.size.k
    counts, energy = [], []
    for gradient in gradients:
        u = method.residuals[0] + gradient
        method.run([gradient], check=True)
        _, values = method.taken(0)
        best = _energy(torch.topk(u.abs(), k).values)
        counts.append(len(values))
        energy.append(_energy(values) / best if best else 1.0)
    return Trace(layer, k, counts, energy, method.verified)


def _energy(values: torch.Tensor) -> float:
    return float(values.double().square().sum())


def tuned_threshold(size: Size, gradients: Sequence[torch.Tensor]) -> float:
    """Returns the median threshold of exact top-k in the last steps of a dry run."""
    top_k = Core(as_sparsifier("top_k"), size)
    top_k.slabs = [size.slab()]
    thresholds = []
    for gradient in gradients:
        top_k.run([gradient])
        thresholds.append(float(top_k.taken(0)[1].abs().min()))
    return statistics.median(thresholds[-TUNED_OVER:])


def methods_for(size: Size, gradients: Sequence[torch.Tensor]) -> list[Selecting]:
    """Returns all methods, for one layer."""
    sparsifiers: list[Sparsifier] = [
        HardThreshold(threshold=tuned_threshold(size, gradients))
        if name == HardThreshold.name
        else as_sparsifier(name)
        for name in SPARSIFIERS
    ]
    return [
        *(Core(sparsifier, size) for sparsifier in sparsifiers),
        *(
            Published(name, method, size)
            for name, method in PUBLISHED.items()
            if "exact" not in name
        ),
    ]


def traces_of(recording: Recording, density: float) -> dict[str, list[Trace]]:
    """Returns each method's traces, one per layer."""
    traces: dict[str, list[Trace]] = {}
    for layer, gradients in recording.items():
        size = Size(gradients[0].numel(), 1, density)
        for method in methods_for(size, gradients):
            traces.setdefault(method.name, []).append(follow(method, layer, gradients))
    return traces


def row_of(name: str, traces: Sequence[Trace]) -> Row:
    """Returns a method's row in the table."""
    asked = sum(trace.k * len(trace.counts) for trace in traces)
    worst = max(traces, key=lambda trace: abs(math.log(max(_mean(trace), 1e-9))))
    inside = [FEW <= ratio <= MANY for trace in traces for ratio in trace.ratios]
    kept = "yes" if all(trace.verified for trace in traces) else "NO"
    energy = sum(trace.k * sum(trace.energy) for trace in traces) / asked
    facts: dict[str, float | int | str] = {
        "count/k, mean": f"{sum(sum(trace.counts) for trace in traces) / asked:.2f}",
        "worst layer": f"{_mean(worst):.2f}",
        f"k >= {SMALL_K}": _extremes([trace for trace in traces if trace.k >= SMALL_K]),
        f"k < {SMALL_K}": _extremes([trace for trace in traces if trace.k < SMALL_K]),
        "in bounds": f"{100 * statistics.fmean(inside):.0f} %",
        "bounds kept": kept if name in SPARSIFIERS else "has none",
        "energy": f"{energy:.3f}",
    }
    return Row(name, None, facts)


def _mean(trace: Trace) -> float:
    return statistics.fmean(trace.ratios)


def _extremes(traces: Sequence[Trace]) -> str:
    ratios = [ratio for trace in traces for ratio in trace.ratios]
    return f"{min(ratios):.2f}-{max(ratios):.2f}" if ratios else ""


# Okabe and Ito's colours, which colour-blind readers can tell apart.
STYLES = {
    "top_k": ("#000000", "-"),
    "gaussian": ("#0072B2", "-"),
    "sampled": ("#E69F00", "-"),
    "sidco": ("#009E73", "-"),
    "hard_threshold": ("#CC79A7", "-"),
    "random_k": ("#56B4E9", "--"),
    "one_sign": ("#E69F00", "--"),
    "published: GaussianK": ("#D55E00", "-"),
    "published: DGC": ("#0072B2", "-"),
}


def plot(file: Path, density: float, traces: dict[str, dict[str, list[Trace]]]) -> None:
    """Draws count/k over the steps, for each model's largest layer: ours and published methods."""
    mpl.use("Agg")
    groups = {"hvd_sparse": False, "published methods": True}
    figure, axes = plt.subplots(
        len(traces), len(groups), figsize=(11, 3.6 * len(traces)), sharex=True, sharey=True,
        squeeze=False, layout="constrained",
    )  # fmt: skip
    lowest = 0.1
    for row, (model, methods) in zip(axes, traces.items(), strict=True):
        for axis, (group, published) in zip(row, groups.items(), strict=True):
            axis.axhspan(FEW, MANY, color="0.9", zorder=0)
            for name, own in methods.items():
                if name.startswith("published") != published:
                    continue
                trace = max(own, key=lambda one: one.k)
                color, style = STYLES[name]
                axis.plot(
                    np.maximum(trace.ratios, lowest),
                    color=color, linestyle=style, linewidth=1.2, label=name,
                )  # fmt: skip
            axis.set_title(f"{model}, {trace.layer}: k = {trace.k:,}; {group}", fontsize=10)
            axis.set_yscale("log")
            axis.legend(loc="upper right", fontsize=8, ncols=2)
    for axis in axes[:, 0]:
        axis.set_ylabel("entries taken / k")
    for axis in axes[-1]:
        axis.set_xlabel("step")
    figure.suptitle(f"density {density:g}; grey: 2k/3 to 4k/3; nothing is drawn below {lowest:g}")
    figure.savefig(file, dpi=150)


@app.command()
def main(
    steps: Annotated[int, typer.Option(min=2, help="of training")] = 200,
    density: Annotated[
        list[float] | None, typer.Option(help="fraction selected; repeatable (.01, .001)")
    ] = None,
    seed: Annotated[int, typer.Option(help="of weights, and order of the data")] = 1,
    markdown: Annotated[bool, typer.Option("--markdown", help="print tables in Markdown")] = False,
    json: Annotated[Path | None, typer.Option(help="write all steps here")] = None,
    plot_to: Annotated[
        Path | None, typer.Option("--plot", help="draw count/k, at the last density, here")
    ] = None,
) -> None:
    """Lets every method select from the gradients of both example models."""
    torch.set_num_threads(1)
    densities = density or list(DENSITIES)
    recordings = {model: record(steps, seed) for model, record in RECORDERS.items()}
    random.seed(seed)
    results, written = [], []
    last: dict[str, dict[str, list[Trace]]] = {}
    for model, recording in recordings.items():
        for share in densities:
            traces = last[model] = traces_of(recording, share)
            rows = [row_of(name, own) for name, own in traces.items()]
            verified = all(trace.verified for own in traces.values() for trace in own)
            settings = {"model": model, "density": share, "steps": steps, "seed": seed}
            title = f"{model}, density {share:g}, {steps} steps"
            results.append(Result(title, rows, settings, verified))
            all_steps = {name: [asdict(trace) for trace in own] for name, own in traces.items()}
            written.append(results[-1].as_json() | {"traces": all_steps})
    for result in results:
        if markdown:
            print(result.markdown())
        else:
            result.show()
    if json is not None:
        write(json, written)
    if plot_to is not None:
        plot(plot_to, densities[-1], last)
    if not all(result.verified for result in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
