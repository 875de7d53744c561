"""Pictures of the papers' tables: time per step of every method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from table_rows import BOUND, COMPUTE, Measurement


def plot_methods(rows: Sequence[Measurement], file: Path) -> None:
    """A panel for each row, a bar for each method; published times as marks."""
    mpl.use("Agg")
    figure, axes = plt.subplots(
        1, len(rows), figsize=(1.5 + 3.2 * len(rows), 4.2), squeeze=False, layout="constrained"
    )
    for axis, row in zip(axes[0], rows, strict=True):
        bars = {**row.seconds, BOUND: row.bound}
        axis.bar(range(len(bars)), list(bars.values()), color="tab:blue", label="measured")
        for place, method in enumerate(bars):
            published = row.paper.steps.get("dense" if method.startswith("dense") else method)
            if published is not None:
                label = f"published, {row.paper.ranks} ranks"
                axis.plot(place, published, "D", color="tab:orange", label=label)
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
    """A line for each method: time per step against the rate of the network."""
    mpl.use("Agg")
    figure, axis = plt.subplots(figsize=(8, 4.8), layout="constrained")
    rates = [row.rate / 1e9 for row in rows]
    for method in rows[0].seconds:
        style = {COMPUTE: "--", "LAGS": "-"}.get(method, ":")
        width = 2.5 if method == "LAGS" else 1.5
        axis.plot(
            rates, [row.seconds[method] for row in rows], style, marker=".", linewidth=width,
            label=method,
        )  # fmt: skip
    axis.plot(rates, [row.bound for row in rows], ":", color="0.5", label=BOUND)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("Gb/s")
    axis.set_ylabel("seconds per step")
    axis.set_title(f"{rows[0].paper.model}, {rows[0].ranks} ranks")
    axis.legend(fontsize=8)
    figure.savefig(file, dpi=150)
    plt.close(figure)
