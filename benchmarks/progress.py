"""Does what a step knows tell how much progress it makes?

Every training without a network notes in each step which share of the accumulated energy was
delivered, how large the residual is over what came in, how long entries waited, and the density. A
predictor is a number made of these means. It is good if it ranks (method, density, warm-up) as the
steps do that they take to dense's loss: Spearman's rank correlation, 1 if the order is the same.

Related: GraVAC's gain, https://arxiv.org/abs/2305.12201; Accordion, https://arxiv.org/abs/2010.16248;
Pollux's goodput, https://arxiv.org/abs/2008.12260.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from learning_runs import Account
from matplotlib import pyplot as plt
from scipy.stats import spearmanr

KNOWN = ("density", "share", "behind", "age")


@dataclass(frozen=True)
class Point:
    """A training.

    Attributes:
        title: Of its method.
        held_out: The loss at the end, in nats above dense's with the same seed.
        known: Means over its steps, by the names in KNOWN.
    """

    title: str
    held_out: float
    known: Mapping[str, float]


# Larger means more progress. "gain" is GraVAC's: delivered energy over that of what came in.
PREDICTORS: dict[str, Callable[[Mapping[str, float]], float]] = {
    "density": lambda known: known["density"],
    "share": lambda known: known["share"],
    "1 / (1 + behind)": lambda known: 1 / (1 + known["behind"]),
    "1 / age": lambda known: 1 / known["age"],
    "gain": lambda known: (
        known["behind"] * math.sqrt(known["share"] / max(1e-9, 1 - known["share"]))
    ),
}


def points(best: Mapping[str, list[Account]]) -> list[Point]:
    """The trainings that noted all of KNOWN, dense left out: it is what they are compared with."""
    dense = {one.run.seed: one.held_out for one in best["dense"]}
    found = []
    for title, accounts in best.items():
        for account in accounts:
            facts = [one for one in account.told["facts"] if set(KNOWN) <= set(one)]
            if title == "dense" or not facts or account.run.seed not in dense:
                continue
            known = {name: statistics.fmean(one[name] for one in facts) for name in KNOWN}
            if not math.isnan(account.held_out):
                found.append(Point(title, account.held_out - dense[account.run.seed], known))
    return found


def correlations(found: list[Point]) -> dict[str, float]:
    """By predictor: the rank correlation with how little is lost against dense, in [-1, 1].

    NaN where a predictor says the same of all.
    """
    progress = [-point.held_out for point in found]
    ranks = {}
    for name, predict in PREDICTORS.items():
        said = [predict(point.known) for point in found]
        varies = len(set(said)) > 1
        ranks[name] = float(spearmanr(said, progress).statistic) if varies else math.nan
    return ranks


def plot_progress(found: list[Point], file: Path) -> None:
    """A panel for each predictor: what it says, and what each training lost against dense."""
    mpl.use("Agg")
    ranks = correlations(found)
    figure, axes = plt.subplots(
        1, len(PREDICTORS), figsize=(3.2 * len(PREDICTORS), 4.4), sharey=True, layout="constrained"
    )
    titles = list(dict.fromkeys(point.title for point in found))
    colours = plt.get_cmap("tab20").colors  # type: ignore[attr-defined]
    for axis, (name, predict) in zip(axes, PREDICTORS.items(), strict=True):
        for number, title in enumerate(titles):
            mine = [point for point in found if point.title == title]
            axis.scatter(
                [predict(point.known) for point in mine], [point.held_out for point in mine],
                color=colours[number % len(colours)], marker="os^D"[number // len(colours)],
                label=title,
            )  # fmt: skip
        axis.set_xscale("log")
        axis.tick_params(axis="x", which="minor", labelbottom=False)
        axis.set_title(f"{name}: {ranks[name]:.2f}", fontsize=10)
        axis.set_xlabel(name)
        axis.grid(color="0.9")
    axes[0].set_ylabel("held-out loss at the end, above dense's")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=7)
    figure.savefig(file, dpi=130)
    plt.close(figure)
