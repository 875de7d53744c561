"""Tables, as Markdown, and plots of trainings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from learning_runs import Account, Run, Store, or_infinity
from matplotlib import pyplot as plt

NOT_REACHED = "-"
DENSE = ("dense, MPI", "dense, Gloo")  # the better of these is what all methods are compared with
LINES = ("-", "--", ":")


def as_markdown(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with its title; all columns but the first are numbers."""
    lines = [f"### {title}", "", f"| {' | '.join(columns)} |"]
    lines.append(f"|---|{'--:|' * (len(columns) - 1)}")
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])


def shown(value: float | None, digits: int = 3) -> str:
    """A number, or a mark where there is none."""
    if value is None or math.isnan(value):
        return NOT_REACHED
    return f"{value:.{digits}f}"


def mean_of(values: Sequence[float], digits: int) -> str:
    """The mean of some seeds, and their standard deviation if there are several."""
    mean = shown(statistics.fmean(values), digits)
    if len(values) < 2 or mean == NOT_REACHED:
        return mean
    return f"{mean} ± {statistics.stdev(values):.{digits}f}"


class Learned:
    """The trainings of one task without a network, all of equally many steps.

    Attributes:
        best: By title, the accounts with the best learning rate, one for each seed.
        rates: By title and learning rate, the account of the first seed.
    """

    def __init__(
        self,
        store: Store,
        task: str,
        steps: int,
        methods: Mapping[str, str],
        rates: Sequence[float],
    ) -> None:
        self.task, self.steps = task, steps
        self.best: dict[str, list[Account]] = {}
        self.rates: dict[str, dict[float, Account]] = {}
        every = [account for account in store.all() if account.run.bits is None]
        for title, text in methods.items():
            mine = [
                one for one in every
                if (one.run.task, one.run.method, one.run.steps) == (task, text, steps)
            ]  # fmt: skip
            first = {one.run.rate: one for one in mine if one.run.seed == 0}
            if not first:
                continue
            best = min(first, key=lambda rate: or_infinity(first[rate].held_out))
            self.rates[title] = first
            self.best[title] = [one for one in mine if one.run.rate == best]
        self.tried = [rate for rate in rates if any(rate in one for one in self.rates.values())]

    def steps_to_dense(self, title: str) -> float | None:
        """Steps to the loss that dense has half-way, over dense's; the mean over the seeds."""
        ratios = []
        for account in self.best[title]:
            goals = [one for one in self.best["dense"] if one.run.seed == account.run.seed]
            if not goals or (half := goals[0].at(self.steps // 2)) is None:
                continue
            reached = account.reaches(half["held_out"], "step")
            if reached is None:
                return None
            ratios.append(reached / (self.steps // 2))
        return statistics.fmean(ratios) if ratios else None

    def table(self) -> str:
        """One row for each method."""
        columns = ["", *(f"rate {rate:g}" for rate in self.tried), "best rate, all seeds", "seeds",
                   "right, %", "steps to dense's loss half-way, over dense's"]  # fmt: skip
        rows = []
        for title, accounts in self.best.items():
            ends = [account.held_out for account in accounts]
            right = [100 * account.accuracy for account in accounts]
            known = self.rates[title]
            rows.append(
                [title, *(shown(known[r].held_out if r in known else None) for r in self.tried),
                 mean_of(ends, 3), str(len(ends)), mean_of(right, 1),
                 shown(self.steps_to_dense(title), 2)]
            )  # fmt: skip
        return as_markdown(
            f"{self.task}: held-out loss after {self.steps:,} steps without a network",
            columns,
            rows,
        )


def seconds_after(account: Account, steps: int) -> float:
    """Seconds of so many steps, from their time in the second half if the run has fewer."""
    block = account.at(steps)
    return account.per_step("seconds") * steps if block is None else block["seconds"]


class Raced:
    """A task on several networks, against the clock.

    Dense sums learn the same on all networks: one of them has to reach the goal, and others may end
    once their steps are timed.

    Attributes:
        accounts: By title, then by bits per second.
        compute: Seconds of a step that exchanges nothing, by bits per second.
        goal: The loss that dense sums have after the goal's steps; NaN if none has taken as many.
        dense: Seconds that the better dense takes for them, by bits per second.
    """

    def __init__(
        self, task: str, networks: Sequence[Mapping[str, Run]], store: Store, goal: int
    ) -> None:
        self.task, self.steps_to_goal = task, goal
        self.accounts: dict[str, dict[float, Account]] = {}
        self.compute: dict[float, float] = {}
        self.goal = math.nan
        self.dense: dict[float, float] = {}
        for runs in networks:
            found = {title: account for title, run in runs.items() if (account := store.find(run))}
            alone = found.pop("alone", None)
            dense = [account for title, account in found.items() if title in DENSE]
            if alone is None or alone.run.bits is None or not dense:
                continue
            bits = alone.run.bits
            self.compute[bits] = alone.per_step("seconds")
            self.dense[bits] = min(seconds_after(one, goal) for one in dense)
            losses = [block["held_out"] for one in dense if (block := one.at(goal))]
            self.goal = max(losses, default=self.goal)
            for title, account in found.items():
                self.accounts.setdefault(title, {})[bits] = account

    @property
    def networks(self) -> list[float]:
        """Bits per second of those on which dense was timed."""
        return list(self.dense)

    def curves(self) -> dict[str, dict[str, Account]]:
        """By network and title."""
        return {
            f"{bits / 1e6:g} Mb/s, dense {self.slowdown(bits):.1f} x computing": {
                title: one[bits] for title, one in self.accounts.items() if bits in one
            }
            for bits in self.networks
        }

    def slowdown(self, bits: float) -> float:
        """How many times as long as computing alone the better dense takes."""
        return self.dense[bits] / self.steps_to_goal / self.compute[bits]

    def table(self) -> str:
        """One row for each method: seconds to the loss, and of a step."""
        columns = [""]
        for bits in self.networks:
            name = f"{bits / 1e6:g} Mb/s"
            columns += [
                f"{name}: s to dense's loss", "over dense", "over computing alone", "ms per step",
                "kB per step", "held-out loss", "after steps",
            ]  # fmt: skip
        rows = []
        for title, by_network in self.accounts.items():
            row = [title]
            for bits in self.networks:
                account = by_network.get(bits)
                if account is None:
                    row += [""] * 7
                    continue
                reached = account.reaches(self.goal, "seconds")
                if title in DENSE:
                    reached = seconds_after(account, self.steps_to_goal)
                alone = self.compute[bits] * self.steps_to_goal
                row += [
                    shown(reached, 1),
                    shown(None if reached is None else reached / self.dense[bits], 2),
                    shown(None if reached is None else reached / alone, 2),
                    shown(1e3 * account.per_step("seconds"), 1),
                    shown(1e-3 * account.per_step("bytes"), 0),
                    shown(account.held_out),
                    str(account.blocks[-1]["step"]),
                ]
            rows.append(row)
        rows.append(["computing alone", *(
            cell for bits in self.networks
            for cell in ("", "", "1", shown(1e3 * self.compute[bits], 1), "0", "", "")
        )])  # fmt: skip
        slow = ", ".join(f"{self.slowdown(bits):.1f}" for bits in self.networks)
        return as_markdown(
            f"{self.task}: seconds to the loss that dense has after {self.steps_to_goal} steps; "
            f"dense takes {slow} times as long as computing",
            columns,
            rows,
        )


# Quantities that a curve may run over: a key of a block, the label of its axis and its scale.
OVER = {
    "step": ("steps", "linear"),
    "seconds": ("seconds", "linear"),
    "bytes": ("bytes that a rank has sent", "log"),
}


def plot_curves(
    panels: Mapping[str, Mapping[str, Account]], over: Sequence[str], file: Path
) -> None:
    """Draws held-out losses: a column for each title, a row for each quantity of OVER."""
    mpl.use("Agg")
    figure, axes = plt.subplots(
        len(over), len(panels), figsize=(1 + 4.6 * len(panels), 0.8 + 4.4 * len(over)),
        squeeze=False, layout="constrained",
    )  # fmt: skip
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    colours = plt.get_cmap("tab20").colors  # type: ignore[attr-defined]
    dense = [name for name in names if name.startswith("dense")]
    styles: dict[str, dict[str, Any]] = {
        name: {
            "color": colours[n % len(colours)],
            "linestyle": LINES[n // len(colours)],
            "linewidth": 1.4,
        }
        for n, name in enumerate(names)
    } | {
        name: {"color": "black", "linestyle": LINES[n % len(LINES)], "linewidth": 2.2}
        for n, name in enumerate(dense)
    }
    for axis, title in zip(axes[0], panels, strict=True):
        axis.set_title(title, fontsize=10)
    for row, what in zip(axes, over, strict=True):
        row[0].set_ylabel("held-out loss")
        for axis, curves in zip(row, panels.values(), strict=True):
            _draw(axis, curves, what, styles)
    handles: dict[str, Any] = {}
    for axis in axes[0]:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(file, dpi=130)
    plt.close(figure)


def _draw(
    axis: Any, curves: Mapping[str, Account], what: str, styles: Mapping[str, dict[str, Any]]
) -> None:
    for name, account in curves.items():
        axis.plot(
            [block[what] for block in account.blocks],
            [block["held_out"] for block in account.blocks],
            label=name, **styles[name],
        )  # fmt: skip
    ends = [account.held_out for account in curves.values() if not math.isnan(account.held_out)]
    low = min(ends, default=0.0)
    axis.set_ylim(low - 0.03 * abs(low), low + max(1.0, 1.2 * (max(ends, default=1.0) - low)))
    label, scale = OVER[what]
    axis.set_xlabel(label)
    axis.set_xscale(scale)
    axis.grid(color="0.9")
    axis.spines[["top", "right"]].set_visible(False)
