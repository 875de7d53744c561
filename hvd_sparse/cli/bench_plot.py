"""The plot of a benchmark: times by size, measured and predicted."""

from __future__ import annotations

from pathlib import Path

from hvd_sparse.bench.results import Results

# Okabe and Ito's colours, which colour-blind readers can tell apart; dense has the first.
COLORS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999999")
MARKERS = "os^"  # of the first lines in all colours, of the next ones, ...


def plot_bench(file: Path, results: Results) -> None:
    """Draws the time of each method, selection included, against the size of the tensor."""
    import matplotlib as mpl  # files.check_picture has imported it before

    mpl.use("Agg")  # draws without a display
    from matplotlib import pyplot as plt
    from matplotlib import ticker

    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    plain = sorted((row for row in results.rows if row.wire == "plain"), key=lambda row: row.numel)
    for at, name in enumerate(dict.fromkeys(row.name for row in plain)):
        rows = [row for row in plain if row.name == name]
        numels = [row.numel for row in rows]
        measured = [1000 * row.total.median for row in rows]
        low = [1000 * (row.total.median - row.total.low) for row in rows]
        high = [1000 * (row.total.high - row.total.median) for row in rows]
        color = COLORS[at % len(COLORS)]
        marker = MARKERS[at // len(COLORS)]
        axis.errorbar(numels, measured, yerr=[low, high], color=color, marker=marker, label=name)
        predicted = [1000 * row.predicted_total for row in rows]
        axis.plot(numels, predicted, color=color, linestyle="--", linewidth=1)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.yaxis.set_major_formatter("{x:,g}")
    axis.yaxis.set_minor_formatter(ticker.LogFormatter())
    axis.set_xlabel("entries")
    axis.set_ylabel("ms, selection included; dashed: predicted")
    network, settings = results.cluster.network, results.settings
    axis.set_title(f"{network.size} ranks, density {settings.density:g}", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=150)
    plt.close(figure)
