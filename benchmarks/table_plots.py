"""Plots of the papers' tables: time per step of every method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from table_rows import BOUND, COMPUTE, DENSE, Measurement

# Styles of a sweep's methods. Okabe and Ito's colours, which colour-blind readers can tell apart.
_STYLES: dict[str, dict[str, Any]] = {
    COMPUTE: {"linestyle": "--", "color": "0.3"},
    DENSE[0]: {"linestyle": "-", "color": "#000000"},
    DENSE[1]: {"linestyle": "-", "color": "#999999"},
    "LAGS, allgather": {"linestyle": ":", "color": "#E69F00"},
    "LAGS, gtopk": {"linestyle": ":", "color": "#009E73"},
    "LAGS, recursive_doubling": {"linestyle": ":", "color": "#CC79A7"},
    "LAGS, shard_topk": {"linestyle": ":", "color": "#0072B2"},
    "Dense, float32": {"linestyle": "-.", "color": "#999999"},
    "Dense, bfloat16": {"linestyle": "-.", "color": "#56B4E9"},
    "Dense, int8": {"linestyle": "-.", "color": "#000000"},
    "LAGS": {"linestyle": "-", "color": "#D55E00", "linewidth": 2.5},
}


def plot_methods(rows: Sequence[Measurement], file: Path) -> None:
    """Draws a panel for each row, a bar for each method, and published times as marks."""
    mpl.use("Agg")
    figure, axes = plt.subplots(
        1, len(rows), figsize=(1.5 + 3.2 * len(rows), 4.2), squeeze=False, layout="constrained"
    )
    for axis, row in zip(axes[0], rows, strict=True):
        bars = {**row.seconds, BOUND: row.bound}
        axis.bar(range(len(bars)), list(bars.values()), color="tab:blue", label="measured")
        for index, method in enumerate(bars):
            published = row.paper.steps.get("dense" if method.startswith("dense") else method)
            if published is not None:
                label = f"published, {row.paper.ranks} ranks"
                axis.plot(index, published, "D", color="tab:orange", label=label)
        axis.axhline(row.compute, color="0.4", linewidth=1, linestyle="--", label=COMPUTE)
        axis.set_yscale("log")
        axis.set_xticks(range(len(bars)), list(bars), rotation=60, ha="right", fontsize=8)
        axis.set_title(row.name + (" (void)" if row.problems else ""), fontsize=10)
    handles, labels = axes[0][0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(unique.values(), unique.keys(), fontsize=8, loc="outside upper left", ncols=3)
    axes[0][0].set_ylabel("seconds per step")
    figure.savefig(file, dpi=150)
    plt.close(figure)


def plot_rates(rows: Sequence[Measurement], file: Path) -> None:
    """Draws time per step by the network's rate, and the excess of sparse methods over compute."""
    mpl.use("Agg")
    figure, (steps, added) = plt.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
    rates = [row.rate / 1e9 for row in rows]
    for method in rows[0].seconds:
        style = _STYLES.get(method, {"linestyle": ":"})
        seconds = [row.seconds[method] for row in rows]
        (line,) = steps.plot(rates, seconds, marker=".", label=method, **style)
        if method.startswith("LAGS"):
            beyond = [100 * (row.seconds[method] / row.compute - 1) for row in rows]
            added.plot(rates, beyond, marker=".", **{**style, "color": line.get_color()})
    steps.plot(rates, [row.bound for row in rows], "-.", color="0.5", label=BOUND)
    steps.set_yscale("log")
    steps.set_ylabel("seconds per step")
    added.set_ylim(bottom=0)
    added.set_ylabel("beyond compute only (%)")
    for axis in (steps, added):
        axis.set_xscale("log")
        axis.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axis.minorticks_off()
        axis.set_xlabel("Gb/s")
        axis.grid(color="0.9")
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.suptitle(f"{rows[0].paper.model}, {rows[0].ranks} ranks", fontsize=11)
    figure.savefig(file, dpi=150)
    plt.close(figure)
