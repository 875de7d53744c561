"""hvd-sparse bench: times dense and sparse exchanges on this cluster, and says which win."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hvd_sparse.bench.results import WINNING_SPEEDUP, Results, Row, Settings, Timing, winners
from hvd_sparse.cli import bench_ranks, files
from hvd_sparse.cli.bench_ranks import Library
from hvd_sparse.cli.console import wide_console
from hvd_sparse.cli.numbers import integer, number
from hvd_sparse.compression import LAGS
from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.errors import HvdSparseError, InvalidArgumentError
from hvd_sparse.planning.planner import rules_of
from hvd_sparse.planning.quantities import shown_rate, shown_seconds

if TYPE_CHECKING:
    from hvd_sparse.bench.ranks import JobRanks

START = "`horovodrun -np 4 hvd-sparse bench` or `torchrun --nproc-per-node 4 -m hvd_sparse bench`"


def bench(
    numel: Annotated[
        list[int] | None,
        typer.Option(
            parser=integer,
            help="Entries of a tensor; may be repeated. Default: 10 thousand to 4 million.",
        ),
    ] = None,
    density: Annotated[
        float, typer.Option(parser=number, help="Fraction of the entries sent.")
    ] = Settings.density,
    repetitions: Annotated[
        int, typer.Option(parser=integer, help="Timed turns of each method.")
    ] = 9,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write everything as JSON; -: print it instead.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the cluster, for hvd-sparse plan --network.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw times by size to this PNG.")] = None,
    library: Annotated[
        Library | None,
        typer.Option(help="What connects the ranks. Default: torch under torchrun, else horovod."),
    ] = None,
) -> None:
    """Measures this cluster, and times every collective, sparse or dense, beside the library's own.

    Runs on all ranks of a job: `horovodrun -np 4 hvd-sparse bench`, or without Horovod
    `torchrun --nproc-per-node 4 -m hvd_sparse bench`. The exit status is 1 if a sum was wrong or
    the job failed, 2 if an option is.
    """
    try:
        chosen = {"numels": tuple(numel)} if numel else {}
        settings = Settings(density=density, repetitions=repetitions, **chosen)
    except InvalidArgumentError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        chosen_library = library or bench_ranks.library_of(os.environ)
        results = _run(settings, chosen_library, json_file, save, plot)
    except InvalidArgumentError as error:
        raise typer.BadParameter(str(error)) from None
    except HvdSparseError as error:
        print(f"hvd-sparse bench: {error}", file=sys.stderr, flush=True)
        raise typer.Exit(1) from None
    if results is not None:
        _report(results, json_file, save, plot)


def _run(
    settings: Settings,
    library: Library,
    json_file: Path | None,
    save: Path | None,
    plot: Path | None,
) -> Results | None:
    """Measures and times; returns the results on rank 0, None on the others."""
    # Imported here, so that the other commands work without the core.
    from hvd_sparse.bench.bench import run

    with bench_ranks.ranks_of(library) as ranks:
        if ranks.world.size == 1:
            raise InvalidArgumentError(
                f"a bench compares ranks, and this is a job of one: run {START}"
            )
        _agree_on_files(ranks, json_file, save, plot)
        exchange = ranks.connect()
        results = run(settings, ranks, exchange, ranks.measure(exchange))
        return results if ranks.world.rank == 0 else None


def _agree_on_files(
    ranks: JobRanks, json_file: Path | None, save: Path | None, plot: Path | None
) -> None:
    """Raises on all ranks if rank 0 will not be able to write its files. Collective."""
    problem = None
    if ranks.world.rank == 0:
        try:
            if json_file is not None and str(json_file) != "-":
                files.check_writable("--json", json_file, in_job=True)
            if save is not None:
                files.check_writable("--save", save, in_job=True)
            if plot is not None:
                files.check_picture("--plot", plot, in_job=True)
        except InvalidArgumentError as error:
            problem = str(error)
    problem = ranks.world.broadcast_object(problem, str | None)
    if problem is not None:
        raise InvalidArgumentError(problem)


def _report(results: Results, json_file: Path | None, save: Path | None, plot: Path | None) -> None:
    if plot is not None:
        from hvd_sparse.cli.bench_plot import plot_bench

        plot_bench(plot, results)
    if save is not None:
        results.cluster.save(save)
    text = json.dumps(account(results), indent=2)
    if json_file is not None and str(json_file) != "-":
        json_file.write_text(text + "\n")
    if json_file is not None and str(json_file) == "-":
        print(text)
    else:
        show(results, wide_console())


def account(results: Results) -> dict[str, Any]:
    """Returns all results as plain values, for JSON."""
    return {
        "settings": asdict(results.settings),
        "library": results.library,
        "transport": results.transport,
        "cluster": json.loads(results.cluster.to_json()),
        "rows": [asdict(row) for row in results.rows],
        "sparse_wins_at": list(winners(results)),
        "verdict": verdict(results),
        "verified": True,  # a wrong sum would have ended the command
    }


def show(results: Results, console: Console) -> None:
    """Prints the cluster, a table for each size, and the verdict."""
    show_cluster(results, console)
    for numel in dict.fromkeys(results.settings.numels):
        show_size(results.at(numel), console)
    text = escape(verdict(results))
    style = "bold green" if winners(results) else "bold yellow"
    console.print(f"[{style}]{text}[/]", soft_wrap=True)


def show_cluster(results: Results, console: Console) -> None:
    """Prints the measurements of the network and of a rank's own work."""
    network, machine = results.cluster.network, results.cluster.machine
    over = results.transport.upper()
    ranks = f"{network.size} ranks, {network.local_size} on a node, over {over}"
    console.print(f"[bold]{ranks}[/]\n")
    table = Table(box=None, pad_edge=False)
    table.add_column("all ranks at once")
    for column in ("alpha", "beta", "rate"):
        table.add_column(column, justify="right", no_wrap=True)
    links = [(f"messages to rank r ^ {distance}", link) for distance, link in network.links]
    links.append((f"dense allreduce of {results.library}", network.dense))
    if network.dense16 is not None:
        links.append(("the same in float16, with casts", network.dense16))
    for name, link in links:
        rate = shown_rate(1 / link.beta) if link.beta else "no limit"
        table.add_row(name, shown_seconds(link.alpha), f"{1e9 * link.beta:.3g} ns/byte", rate)
    if network.gap is not None:
        table.add_row("one message more, beside others", shown_seconds(network.gap), "", "")
    console.print(table)
    per_entry = {
        "select": machine.select_seconds_per_entry,
        "merge": machine.merge_seconds_per_entry,
        "pack and unpack": machine.code_seconds_per_entry,
        "write": machine.scatter_seconds_per_entry,
    }
    work = ", ".join(f"{name} {1e9 * seconds:.2g}" for name, seconds in per_entry.items())
    once = shown_seconds(machine.select_overhead + machine.exchange_overhead)
    console.print(
        f"\nA rank's own work, ns per entry: {work}; {once} once per exchange.\n", soft_wrap=True
    )


def show_size(rows: Sequence[Row], console: Console) -> None:
    """Prints a row for each method at one size."""
    k = min(row.k for row in rows)
    console.print(f"[bold]{rows[0].numel:,} entries, of which each rank sends {k:,}[/]")
    table = Table(box=None, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for column in (
        "exchange", "quartiles", "predicted", "ratio",
        "with selection", "predicted", "ratio", "speed-up",
    ):  # fmt: skip
        table.add_column(column, justify="right", no_wrap=True)
    best = max(rows, key=lambda row: row.speedup)
    for row in rows:
        table.add_row(
            row.name,
            shown_seconds(row.exchange.median),
            _quartiles(row.exchange),
            shown_seconds(row.predicted_exchange),
            f"{row.exchange.median / row.predicted_exchange:.2f}",
            shown_seconds(row.total.median),
            shown_seconds(row.predicted_total),
            f"{row.total.median / row.predicted_total:.2f}",
            f"{row.speedup:.3g}",
            style="bold" if row is best else None,
        )
    console.print(table)
    console.print()


def verdict(results: Results) -> str:
    """Returns sentences that say from which size on sparse exchange wins, and what our sum does."""
    sparse, dense = _verdict_on_sparse(results), _verdict_on_dense(results)
    if dense or winners(results):
        return f"{sparse}{dense}"
    return f"Compression will not help here: {sparse[0].lower()}{sparse[1:]}"


def _verdict_on_dense(results: Results) -> str:
    """Returns a sentence about the core's dense sum, with a space before it; "" if it never won."""
    of_lags = rules_of(LAGS()).dense_values
    rows = [row for row in results.rows if row.collective == SHARD_SUM and row.values in of_lags]
    best = max(rows, key=lambda row: row.speedup, default=None)
    if best is None or best.speedup < WINNING_SPEEDUP:
        return ""
    return (
        f" Of the sums of all entries that LAGS chooses from, {best.name} is {best.speedup:.3g} "
        f"times as fast as dense at {best.numel:,} entries."
    )


def _verdict_on_sparse(results: Results) -> str:
    numels = sorted(set(results.settings.numels))
    won = winners(results)
    density = f"density {results.settings.density:g}"
    if not won:
        best = max(
            (row for numel in numels for row in results.sparse_at(numel)),
            key=lambda row: row.speedup,
        )
        return (
            f"At {density} no sparse exchange was "
            f"{100 * (WINNING_SPEEDUP - 1):.2g} % faster than dense at any size. The best was "
            f"{best.name} of {best.numel:,} entries, {best.speedup:.3g} times as fast."
        )
    last = max(results.sparse_at(won[-1]), key=lambda row: row.speedup)
    gain = f"{last.name} is {last.speedup:.3g} times as fast as dense at {won[-1]:,} entries."
    of_lags = rules_of(LAGS()).allowed
    if last.collective not in of_lags:
        own = [row for row in results.at(won[-1]) if row.collective in of_lags]
        best = max(own, key=lambda row: row.speedup)
        gain += (
            f" Of those that LAGS chooses from, {best.name} is {best.speedup:.3g} times as fast."
        )
    if list(won) == numels:
        return f"Sparse exchange wins here at {density} at every size from {won[0]:,} on: {gain}"
    if list(won) == numels[-len(won) :]:
        return f"Sparse exchange wins here at {density} from {won[0]:,} entries on: {gain}"
    sizes = ", ".join(f"{one:,}" for one in won)
    return f"Sparse exchange wins here at {density} for {sizes} entries, not for others: {gain}"


def _quartiles(timing: Timing) -> str:
    return f"{shown_seconds(timing.low)} - {shown_seconds(timing.high)}"
