"""Predicts what a collective sends and takes by the number of ranks, from the cost model.

    python benchmarks/scaling.py --plot scaling.png

The figures are those of hvd_sparse/planning/costs.py for one bucket, selection included, with one
and with eight ranks on a node, which share its link. Ranks that are threads of this process check
them: every collective between up to 256 is compared with the reference, and the bytes of up to 64
with the model (--verify 0 omits that).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import matplotlib as mpl
import typer
from loopback_ranks import bytes_of, is_right
from matplotlib import pyplot as plt
from reporting import Result, Row, write

from hvd_sparse import _core
from hvd_sparse.planning import costs
from hvd_sparse.planning.network import Link, Network
from hvd_sparse.planning.profile import ONE_CORE, Machine, Profile

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

# Seconds per message by rate of a node in Gb/s.
LATENCY = {0.1: 500e-6, 1: 200e-6, 10: 50e-6, 100: 5e-6}
SIZES = [1 << bit for bit in range(2, 13)]
ON_A_NODE = (1, 8)
LOCAL = Link(alpha=3e-6, beta=1 / 10e9)  # between ranks of a node, through its memory
COUNTED = (4, 8, 16, 64)  # ranks whose bytes are counted
TOLERANCE = 0.1  # of the model's bytes


class Method(NamedTuple):
    """A collective, whether it follows a sum of each node, and its style in plots."""

    collective: str
    nodes_first: bool
    color: str
    line: str

    @property
    def name(self) -> str:
        """The method's name in tables."""
        return f"{self.collective}, nodes first" if self.nodes_first else self.collective


# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLORS = {
    "allgather": "#E69F00",
    "recursive_doubling": "#CC79A7",
    "shard_topk": "#0072B2",
    "gtopk": "#009E73",
}
METHODS = (
    *(Method(name, False, color, "-") for name, color in COLORS.items()),
    *(Method(name, True, color, ":") for name, color in COLORS.items()),
    Method("dense", False, "#000000", "--"),
)


class Case(NamedTuple):
    """The bucket of all figures, and the machine of each rank."""

    numel: int
    density: float
    machine: Machine

    @property
    def k(self) -> int:
        """Entries that a rank sends."""
        return max(1, int(self.density * self.numel))

    def cost(self, method: Method, size: int, on_a_node: int, rate: float) -> costs.Cost | None:
        """Returns the cost of an exchange in packed int4; None where it is not possible."""
        if size < on_a_node:
            return None
        network = Network.assumed(
            size,
            rate * 1e9 / 8 / on_a_node,
            LATENCY[rate],
            local_size=on_a_node,
            local=LOCAL,
        )
        if not costs.possible(method.collective, network, nodes_first=method.nodes_first):
            return None
        packed = {} if method.collective == "dense" else {"wire": "packed", "values": "int4"}
        return costs.cost(
            method.collective,
            k=self.k,
            numel=self.numel,
            network=network,
            machine=self.machine,
            nodes_first=method.nodes_first,
            **packed,
        )

    def milliseconds(self, method: Method, size: int, on_a_node: int, rate: float) -> float | None:
        """Returns the milliseconds of an exchange, selection included."""
        one = self.cost(method, size, on_a_node, rate)
        if one is None:
            return None
        selects = method.collective != "dense" and not method.nodes_first
        return 1e3 * (one.seconds + (self.machine.select_seconds(self.numel) if selects else 0.0))

    def bits(self, method: Method, size: int) -> float | None:
        """Returns the bits that a rank on a node of its own sends, for each entry of the bucket."""
        one = self.cost(method, size, 1, 1)
        return None if one is None else 8 * one.bytes / self.numel


def plot(file: Path, case: Case) -> None:
    """Draws the bits, and the times by bandwidth and ranks on a node."""
    mpl.use("Agg")
    figure, axes = plt.subplots(
        len(ON_A_NODE), 1 + len(LATENCY), figsize=(15, 6.6), sharex=True, layout="constrained"
    )
    for row, on_a_node in zip(axes, ON_A_NODE, strict=True):
        for axis, rate in zip(row[1:], LATENCY, strict=True):
            for method in METHODS:
                times = [case.milliseconds(method, size, on_a_node, rate) for size in SIZES]
                draw(axis, method, times)
            axis.set_title(f"{rate:g} Gb/s, {1e6 * LATENCY[rate]:.0f} µs a message", fontsize=10)
        row[1].set_ylabel(f"ms, {on_a_node} on a node")
    for method in METHODS:
        draw(axes[0][0], method, [case.bits(method, size) for size in SIZES])
    axes[0][0].set_title("sent by a rank, for each entry", fontsize=10)
    axes[0][0].set_ylabel("bits, 1 on a node")
    axes[1][0].set_axis_off()
    for axis in axes[1][1:]:
        axis.set_xlabel("ranks")
    handles, labels = axes[1][1].get_legend_handles_labels()
    axes[1][0].legend(handles, labels, loc="center", frameon=False)
    figure.suptitle(
        f"one exchange of {case.numel / 1e6:g} M entries at density {case.density:g}, "
        "packed positions and four bits",
        fontsize=11,
    )
    figure.savefig(file, dpi=110)
    plt.close(figure)


def draw(axis: plt.Axes, method: Method, values: list[float | None]) -> None:
    """Draws one line, where it has values."""
    there = [(size, value) for size, value in zip(SIZES, values, strict=True) if value is not None]
    if not there:
        return
    axis.plot(
        *zip(*there, strict=True), label=method.name.replace("_", " "), color=method.color,
        linestyle=method.line, linewidth=1.4,
    )  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(SIZES[::2], [str(size) for size in SIZES[::2]])
    axis.grid(color="0.9")
    axis.spines[["top", "right"]].set_visible(False)


def counted(sizes: list[int], density: float) -> tuple[Result, bool]:
    """Returns bits that ranks have sent beside the model's, and true if they agree.

    Ranks select independently here, as the model assumes.
    """
    case = Case(1_000_000, density, ONE_CORE)
    rows, right = [], True
    for method in METHODS:
        if method.nodes_first or method.collective == "dense":
            continue
        facts = {}
        for size in sizes:
            sent = bytes_of(method.collective, size, numel=case.numel, k=case.k)
            model = case.bits(method, size)
            assert model is not None
            facts[f"P = {size}: counted"] = found = 8 * sent / case.numel
            facts[f"P = {size}: model"] = model
            right &= abs(found / model - 1) < TOLERANCE
        rows.append(Row(method.name, None, facts))
    settings = {"numel": case.numel, "density": density}
    return Result(f"bits an entry, density {density:g}, packed int4", rows, settings, right), right


@app.command()
def main(
    numel: Annotated[int, typer.Option(min=1, help="entries of the gradient")] = 25_600_000,
    density: Annotated[float, typer.Option(help="of the sparse collectives")] = 0.01,
    machine_of: Annotated[
        Path | None, typer.Option("--profile", help="take the machine from this profile")
    ] = None,
    verify: Annotated[int, typer.Option(min=0, help="most ranks that are really run")] = 256,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures")] = None,
    png: Annotated[Path | None, typer.Option("--plot", help="draw the figures")] = None,
    markdown: Annotated[bool, typer.Option(help="print tables in Markdown")] = False,
) -> None:
    """Prints a table of bits and one of times for each network; fails if ranks find others."""
    machine = ONE_CORE if machine_of is None else Profile.load(machine_of).machine
    case = Case(numel, density, machine)
    verified = all(
        is_right(name, size)
        for name in _core.collectives()
        for size in (4, 7, 16, 33, 64, 128, 256)
        if size <= verify
    )
    results = []
    if sizes := [size for size in COUNTED if size <= verify]:
        table, agree = counted(sizes, density)
        verified &= agree
        results.append(table)
    for on_a_node in ON_A_NODE:
        for rate in LATENCY:
            rows = []
            for method in METHODS:
                times = {
                    f"P = {size}": time
                    for size in SIZES
                    if (time := case.milliseconds(method, size, on_a_node, rate)) is not None
                }
                if times:
                    rows.append(Row(method.name, None, times))
            settings = {"numel": numel, "density": density, "gigabits": rate,
                        "latency": LATENCY[rate], "on_a_node": on_a_node,
                        "verified_up_to": verify}  # fmt: skip
            title = f"predicted ms at {rate:g} Gb/s, {on_a_node} on a node, density {density:g}"
            results.append(Result(title, rows, settings, verified))
    for result in results:
        if markdown:
            print(result.markdown())
        else:
            result.show()
    if json_file is not None:
        write(json_file, [result.as_json() for result in results])
    if png is not None:
        plot(png, case)
    if not verified:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
