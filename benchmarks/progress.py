"""Does what a step knows predict how much progress it makes?

Every training of a prototype without a network notes in each step the share of the accumulated
energy that was delivered, the norm of the residual over that of the gradient, how long entries
waited, and the density; and in each block how far its steps came down along the gradients that
followed. A predictor is a number made of the means over a run. It is good if it ranks trainings as
their final losses do, by Spearman's rank correlation (1: the same order): all trainings, and those
of one family, which differ in density and warm-up alone.

Related: GraVAC's gain, https://arxiv.org/abs/2305.12201; Accordion, https://arxiv.org/abs/2010.16248;
Pollux's goodput, https://arxiv.org/abs/2008.12260.
"""

from __future__ import annotations

import math
import re
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
        title: The method's title.
        family: The method without its density and warm-up.
        held_out: The loss at the end, in nats above dense's with the same seed.
        known: Means over its steps, by the names in KNOWN; "descent" is a sum, in nats, and NaN
            where the account does not have it.
    """

    title: str
    family: str
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
    "descent": lambda known: known["descent"],
}
SMALLEST_FAMILY = 4  # trainings, for a rank correlation within it


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
            known["descent"] = sum(block.get("descent", math.nan) for block in account.blocks)
            if not math.isnan(account.held_out):
                lost = account.held_out - dense[account.run.seed]
                found.append(Point(title, family_of(account.run.method), lost, known))
    return found


def family_of(method: str) -> str:
    """A method's text without density and warm-up."""
    return re.sub(r"(density|warmup)=[\d.]+(, )?", "", method)


def correlations(found: list[Point]) -> dict[str, float]:
    """By predictor: the rank correlation with how little is lost against dense, in [-1, 1].

    NaN where a predictor says the same of all.
    """
    return {name: _correlation(predict, found) for name, predict in PREDICTORS.items()}


def within_families(found: list[Point]) -> dict[str, float]:
    """By predictor: the mean rank correlation within families of at least SMALLEST_FAMILY."""
    families: dict[str, list[Point]] = {}
    for point in found:
        families.setdefault(point.family, []).append(point)
    large = [family for family in families.values() if len(family) >= SMALLEST_FAMILY]
    means = {}
    for name, predict in PREDICTORS.items():
        ranks = [rank for each in large if not math.isnan(rank := _correlation(predict, each))]
        means[name] = statistics.fmean(ranks) if ranks else math.nan
    return means


def _correlation(predict: Callable[[Mapping[str, float]], float], found: list[Point]) -> float:
    said = [(predict(point.known), -point.held_out) for point in found]
    known = [(value, progress) for value, progress in said if not math.isnan(value)]
    if len({value for value, _ in known}) < 2:
        return math.nan
    return float(spearmanr(known).statistic)


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
