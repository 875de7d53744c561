"""Dense training against LAGS, which sends 1 % of each gradient: a table and a picture.

    python examples/demo.py

Trains the network of pytorch_digits.py twice with 4 ranks: same seed, same epochs. Each rank is a
host of its own, behind an emulated link, where that is possible (docs/virtual_cluster.md); the
table then ends with the time to the same accuracy. Elsewhere ranks share this machine, and bytes
are compared.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import launch
import matplotlib as mpl
import typer
from rich.console import Console
from rich.table import Table

mpl.use("Agg")  # draws without a display
from matplotlib import pyplot as plt

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from virtual_cluster import ClusterError, VirtualCluster, enter_user_namespace, why_not

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

COLORS = {"dense": "#5b6770", "LAGS": "#d1495b"}


@app.command()
def main(
    ranks: Annotated[int, typer.Option(min=1, help="processes of the job")] = 4,
    density: Annotated[float, typer.Option(help="fraction of a gradient that LAGS sends")] = 0.01,
    epochs: Annotated[int, typer.Option(min=1, help="passes over the training data")] = 10,
    rate: Annotated[str, typer.Option(help="of each emulated link; 0: none")] = "100mbit",
    seed: Annotated[int, typer.Option(help="of weights, and order of the data")] = 1,
    picture: Annotated[Path, typer.Option(help="where to draw")] = Path("demo.png"),
) -> None:
    """Trains twice, prints a table and draws the losses."""
    console = Console()
    if rate != "0":
        enter_user_namespace()  # which begins again, as root of it
    reason = "no link is asked for" if rate == "0" else why_not()
    if reason is not None:
        console.print(f"all ranks share this machine: {reason}", highlight=False)
    shared = ["--epochs", str(epochs), "--seed", str(seed)]
    variants = {
        "dense": ["--compression", "none"],
        "LAGS": [
            *("--compression", "lags", "--density", str(density)),
            *("--warmup-epochs", str(epochs / 5)),
        ],
    }
    accounts = {}
    with trainer(ranks, None if reason is not None else rate) as train:
        for name, own in variants.items():
            # No spinner: the example draws its own progress bar on this terminal.
            console.print(f"{name}: training with {ranks} ranks, {epochs} epochs")
            accounts[name] = train([*own, *shared])
            value = accounts[name]["value"]
            console.print(f"{name}: trained, {value:.1f} % of the test images recognised")

    dense, lags = accounts["dense"], accounts["LAGS"]
    goal = None if reason is not None else min(max(one["epochs"]) for one in accounts.values())
    console.print(table(accounts, goal))
    less = dense["bytes_sent_per_rank_and_step"] / lags["bytes_sent_per_rank_and_step"]
    difference = lags["value"] - dense["value"]
    text = (
        f"LAGS sent {less:.0f} times fewer bytes; its test accuracy differs by {difference:+.2f} "
        "points."
    )
    if goal is None:
        text += " In time that pays on a network; here all ranks share one machine."
    else:
        faster = seconds_to(dense, goal) / seconds_to(lags, goal)
        text += (
            f" It reached {goal:.1f} % {faster:.1f} times sooner, over links of {rate[:-4]} Mb/s."
        )
    console.print(text)
    draw(accounts, picture, by_time=goal is not None)
    console.print(f"loss against steps and {'bytes' if goal is None else 'seconds'}: {picture}")


Train = Callable[[list[str]], dict[str, Any]]


@contextmanager
def trainer(ranks: int, rate: str | None) -> Iterator[Train]:
    """Provides a function that trains the example with these arguments, and returns its record."""
    if rate is None:
        yield lambda arguments: launch.run("pytorch_digits.py", arguments, ranks=ranks)
        return
    with VirtualCluster(ranks, rate) as cluster, tempfile.TemporaryDirectory() as folder:

        def train(arguments: list[str]) -> dict[str, Any]:
            account = Path(folder) / "account.json"
            example = str(launch.FOLDER / "pytorch_digits.py")
            try:
                cluster.run([sys.executable, example, *arguments, "--json", str(account)])
            except ClusterError as error:
                sys.exit(str(error))
            result: dict[str, Any] = json.loads(account.read_text())
            return result

        yield train


def seconds_to(account: dict[str, Any], goal: float) -> float:
    """Returns the seconds of the steps until an epoch ends with that accuracy."""
    steps = len(account["steps"]["seconds"]) // len(account["epochs"])
    ends = list(accumulate(account["steps"]["seconds"]))[steps - 1 :: steps]
    return next(end for end, value in zip(ends, account["epochs"], strict=True) if value >= goal)


def table(accounts: dict[str, dict[str, Any]], goal: float | None) -> Table:
    """Returns a table with one row for each run; with a goal, of the time to that accuracy, too."""
    first = next(iter(accounts.values()))
    title = f"handwritten digits, {first['parameters']:,} parameters, {first['ranks']} ranks"
    table = Table(title=title)
    table.add_column("gradients")
    for column in ("test accuracy", "bytes sent per rank and step", "density reached"):
        table.add_column(column, justify="right")
    table.add_column("seconds per step", justify="right")
    if goal is not None:
        table.add_column(f"seconds to {goal:.1f} %", justify="right")
    for name, account in accounts.items():
        table.add_row(
            name,
            f"{account['value']:.2f} %",
            f"{account['bytes_sent_per_rank_and_step']:,.0f}",
            f"{account['density_reached']:.4f}",
            f"{account['seconds_per_step']:.4f}",
            *([] if goal is None else [f"{seconds_to(account, goal):.1f}"]),
        )
    return table


def draw(accounts: dict[str, dict[str, Any]], file: Path, *, by_time: bool) -> None:
    """Draws loss against steps, and against seconds or the bytes that a rank has sent so far."""
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, (by_step, by_cost) = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True)
    what, unit, scale = ("seconds", "s", 1.0) if by_time else ("bytes_sent", "MB", 1e6)
    ends = []
    for name, account in accounts.items():
        epoch = len(account["steps"]["loss"]) // len(account["epochs"])
        loss = running_mean(account["steps"]["loss"], window=epoch)
        costs = [cost / scale for cost in accumulate(account["steps"][what])]
        style = {"color": COLORS[name], "linewidth": 2, "label": name}
        by_step.plot(range(1, len(loss) + 1), loss, **style)
        by_cost.plot(costs, loss, **style)
        by_cost.plot(costs[-1], loss[-1], "o", color=COLORS[name])
        ends.append(costs[-1])
        by_cost.annotate(
            f"{costs[-1]:,.0f} {unit}", (costs[-1], loss[-1]), color=COLORS[name],
            xytext=(8, 0), textcoords="offset points", va="center",
        )  # fmt: skip
    by_step.set(
        xlabel="step", ylabel="training loss, mean of the last epoch", yscale="log", xlim=(0, None)
    )
    by_step.set_title("Loss against steps", loc="left")
    if by_time:
        by_cost.set(xlabel="seconds of training", xlim=(0, 1.15 * max(ends)))
        by_cost.set_title("Loss against seconds", loc="left")
    else:
        by_cost.set(xlabel="megabytes sent by each rank", xscale="log", xlim=(None, 10 * max(ends)))
        by_cost.set_title("Loss against bytes sent", loc="left")
    by_cost.xaxis.set_major_formatter("{x:g}")
    for axes in (by_step, by_cost):
        axes.grid(color="#e6e6e6", linewidth=0.8)
        axes.set_axisbelow(True)
    by_step.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def running_mean(values: list[float], window: int) -> list[float]:
    """Returns the mean of the last `window` values, fewer at the start."""
    sums = [0.0, *accumulate(values)]
    return [
        (sums[i] - sums[max(0, i - window)]) / min(i, window) for i in range(1, len(values) + 1)
    ]


if __name__ == "__main__":
    app()
