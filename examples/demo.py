"""Dense training against LAGS, which sends 1 % of each gradient: a table and a picture.

    python examples/demo.py

Trains the network of pytorch_digits.py twice with 4 ranks on this machine: same seed, same epochs.
"""

from __future__ import annotations

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

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

COLORS = {"dense": "#5b6770", "LAGS": "#d1495b"}


@app.command()
def main(
    ranks: Annotated[int, typer.Option(min=1, help="processes of the job")] = 4,
    density: Annotated[float, typer.Option(help="fraction of a gradient that LAGS sends")] = 0.01,
    epochs: Annotated[int, typer.Option(min=1, help="passes over the training data")] = 40,
    seed: Annotated[int, typer.Option(help="of weights, and order of the data")] = 1,
    picture: Annotated[Path, typer.Option(help="where to draw")] = Path("demo.png"),
) -> None:
    """Trains twice, prints a table and draws the losses."""
    console = Console()
    shared = ["--epochs", str(epochs), "--seed", str(seed)]
    variants = {
        "dense": ["--compression", "none"],
        "LAGS": ["--compression", "lags", "--collective", "gtopk", "--density", str(density)],
    }
    accounts = {}
    for name, own in variants.items():
        # No spinner: the example draws its own progress bar on this terminal.
        console.print(f"{name}: training with {ranks} ranks, {epochs} epochs")
        accounts[name] = launch.run("pytorch_digits.py", [*own, *shared], ranks=ranks)
        value = accounts[name]["value"]
        console.print(f"{name}: trained, {value:.1f} % of the test images recognised")

    console.print(table(accounts))
    dense, lags = accounts["dense"], accounts["LAGS"]
    less = dense["bytes_sent_per_rank_and_step"] / lags["bytes_sent_per_rank_and_step"]
    difference = lags["value"] - dense["value"]
    console.print(
        f"LAGS sent {less:.0f} times fewer bytes; its test accuracy differs by {difference:+.2f} "
        "points. In time that pays on a network; here all ranks share one machine."
    )
    draw(accounts, picture)
    console.print(f"loss against steps and bytes: {picture}")


def table(accounts: dict[str, dict[str, Any]]) -> Table:
    """Returns a table with one row for each run."""
    first = next(iter(accounts.values()))
    title = f"handwritten digits, {first['parameters']:,} parameters, {first['ranks']} ranks"
    table = Table(title=title)
    table.add_column("gradients")
    for column in ("test accuracy", "bytes sent per rank and step", "density reached"):
        table.add_column(column, justify="right")
    table.add_column("seconds per step", justify="right")
    for name, account in accounts.items():
        table.add_row(
            name,
            f"{account['value']:.2f} %",
            f"{account['bytes_sent_per_rank_and_step']:,.0f}",
            f"{account['density_reached']:.4f}",
            f"{account['seconds_per_step']:.4f}",
        )
    return table


def draw(accounts: dict[str, dict[str, Any]], file: Path) -> None:
    """Draws loss against steps, and against the bytes that a rank has sent so far."""
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, (by_step, by_bytes) = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True)
    ends = []
    for name, account in accounts.items():
        epoch = len(account["steps"]["loss"]) // len(account["epochs"])
        loss = running_mean(account["steps"]["loss"], window=epoch)
        megabytes = [sent / 1e6 for sent in accumulate(account["steps"]["bytes_sent"])]
        style = {"color": COLORS[name], "linewidth": 2, "label": name}
        by_step.plot(range(1, len(loss) + 1), loss, **style)
        by_bytes.plot(megabytes, loss, **style)
        by_bytes.plot(megabytes[-1], loss[-1], "o", color=COLORS[name])
        ends.append(megabytes[-1])
        by_bytes.annotate(
            f"{megabytes[-1]:,.0f} MB", (megabytes[-1], loss[-1]), color=COLORS[name],
            xytext=(8, 0), textcoords="offset points", va="center",
        )  # fmt: skip
    by_step.set(
        xlabel="step", ylabel="training loss, mean of the last epoch", yscale="log", xlim=(0, None)
    )
    by_bytes.set(xlabel="megabytes sent by each rank", xscale="log", xlim=(None, 10 * max(ends)))
    by_step.set_title("Loss against steps", loc="left")
    by_bytes.set_title("Loss against bytes sent", loc="left")
    by_bytes.xaxis.set_major_formatter("{x:g}")
    for axes in (by_step, by_bytes):
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
