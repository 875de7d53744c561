"""Predicts the time of each collective by the number of ranks, from the cost model.

    python benchmarks/scaling.py --plot scaling.png

The times are those of hvd_sparse/planning/costs.py for one bucket, selection included, at several
bandwidths. The collectives are run, too: every collective of this build between up to 256 ranks
that are threads of this process, compared with the reference (--verify 0 omits that).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import typer
from loopback_ranks import is_right
from matplotlib import pyplot as plt
from reporting import Result, Row, write

from hvd_sparse import _core
from hvd_sparse.planning import costs
from hvd_sparse.planning.profile import Machine, Network, Profile

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

# Seconds per message by rate in Gb/s: gigabit Ethernet, 10 Gb/s and 100 Gb/s.
LATENCY = {1: 436e-6, 10: 50e-6, 100: 5e-6}
SIZES = [1 << bit for bit in range(2, 13)]
# docs/performance_kernels.md, "Selection" and "Merging", with one thread; packing is not there.
MACHINE = Machine(
    select_seconds_per_entry=0.55e-9,
    select_overhead=20e-6,
    merge_seconds_per_entry=3.8e-9,
    code_seconds_per_entry=2e-9,
    scatter_seconds_per_entry=0.15e-9,
)
# Okabe and Ito's colours, which colour-blind readers can tell apart.
STYLES = {
    "allgather": ("#E69F00", "-", "o"),
    "gtopk": ("#009E73", "-", "s"),
    "recursive_doubling": ("#CC79A7", "-", "^"),
    "split_allgather": ("#0072B2", "-", "D"),
    "dense": ("#000000", "--", None),
}


def seconds_of(
    collective: str, size: int, gigabits: float, *, numel: int, density: float, machine: Machine
) -> float:
    """Returns the seconds of one exchange, selection included."""
    network = Network.assumed(size, gigabits * 1e9 / 8, LATENCY[int(gigabits)])
    one = costs.cost(
        collective, k=max(1, int(density * numel)), numel=numel, network=network, machine=machine
    )
    return one.seconds + (machine.select_seconds(numel) if collective != "dense" else 0.0)


def plot(file: Path, tables: dict[int, dict[str, list[float]]], title: str) -> None:
    """Draws a panel for each bandwidth."""
    mpl.use("Agg")
    figure, axes = plt.subplots(
        1, len(tables), figsize=(12, 4.4), sharex=True, layout="constrained", squeeze=False
    )
    for axis, (rate, table) in zip(axes[0], tables.items(), strict=True):
        for name, times in table.items():
            color, line, marker = STYLES[name]
            axis.plot(
                SIZES, [1000 * seconds for seconds in times], label=name.replace("_", " "),
                color=color, linestyle=line, marker=marker, markersize=4, linewidth=1.4,
            )  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_title(f"{rate} Gb/s, {1e6 * LATENCY[rate]:.0f} µs a message", fontsize=10)
        axis.set_xlabel("ranks")
        axis.set_xticks(SIZES[::2], [str(size) for size in SIZES[::2]])
        axis.grid(color="0.9")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("ms")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.savefig(file, dpi=150)
    plt.close(figure)


@app.command()
def main(
    numel: Annotated[int, typer.Option(min=1, help="entries of the gradient")] = 25_600_000,
    density: Annotated[float, typer.Option(help="of the sparse collectives")] = 0.001,
    machine_of: Annotated[
        Path | None, typer.Option("--profile", help="take the machine from this profile")
    ] = None,
    verify: Annotated[int, typer.Option(min=0, help="most ranks that are really run")] = 256,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures")] = None,
    png: Annotated[Path | None, typer.Option("--plot", help="draw the figures")] = None,
    markdown: Annotated[bool, typer.Option(help="print tables in Markdown")] = False,
) -> None:
    """Prints a table for each bandwidth; fails if a collective is wrong between many ranks."""
    machine = MACHINE if machine_of is None else Profile.load(machine_of).machine
    checked = {
        name: is_right(name, size)
        for name in _core.collectives()
        for size in (4, 7, 16, 33, 64, 128, 256)
        if size <= verify
    }
    verified = all(checked.values())
    tables = {
        rate: {
            name: [
                seconds_of(name, size, rate, numel=numel, density=density, machine=machine)
                for size in SIZES
            ]
            for name in STYLES
        }
        for rate in LATENCY
    }
    results = []
    for rate, table in tables.items():
        rows = [
            Row(
                name,
                None,
                {f"P = {size}": 1000 * time for size, time in zip(SIZES, times, strict=True)},
            )
            for name, times in table.items()
        ]
        settings = {"numel": numel, "density": density, "gigabits": rate, "latency": LATENCY[rate],
                    "verified_up_to": verify}  # fmt: skip
        result = Result(f"predicted ms at {rate} Gb/s, density {density}", rows, settings, verified)
        results.append(result)
        if markdown:
            print(result.markdown())
        else:
            result.show()
    if json_file is not None:
        write(json_file, [result.as_json() for result in results])
    if png is not None:
        plot(png, tables, f"one exchange of {numel / 1e6:g} M entries at density {density:g}")
    if not verified:
        raise typer.Exit(code=1)


if __name__ == "__main__":
    app()
