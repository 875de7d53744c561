"""Measures the papers' tables: real exchanges over shaped links, with the compute replayed.

    python benchmarks/paper_tables.py lags --json lags.json --plot lags.png     (as root)
    python benchmarks/paper_tables.py gtopk --only VGG-16 --hosts 8
    python benchmarks/paper_tables.py sweep --json sweep.json --resume
    python benchmarks/paper_tables.py gtopk --local --hosts 2 --only ResNet-20 --dilation 0.1

lags     dense, SLGS (top-k of the whole model) and LAGS with 16 ranks, models of the LAGS paper
gtopk    as lags, and gTop-k, with up to 32 ranks, models of the gTop-k paper
sweep    every collective and our dense sums pinned, dense and LAGS, from 100 Mb/s to 25 Gb/s: LAGS
         should be the lower envelope

LAGS without further options is adaptive: its steps are timed once its tuner has settled.

Dilation: a link of a tenth of the rate and waits of ten times the length keep the ratio of bytes to
compute, while the hosts of a cluster fit on few cores. Latency is not dilated: the network actually
emulated has `rate * dilation` and `latency / dilation`, and both are printed. Times in the tables
are divided by the dilation. Horovod's cycle time is multiplied by it.

A row takes minutes, a table hours: with --resume, rows found in --json are not measured again.

A row counts only if messages take bytes / rate, if it repeats at another dilation, and if the
machine is not busy: table_checks.py. With --local nothing is shaped and no row counts.

Waits use no processor: the emulated nodes have GPUs, and do not train on their processors.
replayed.py and replay.py describe which parts are real.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from clusters import ClusterLauncher, Launcher, LocalLauncher
from memory import GIB
from modes import picked
from paper_figures import BERT_BASE, GTOPK_TABLE, LAGS_TABLE, PaperRow
from reporting import Result
from table_files import row_of, save, saved_rows
from table_plots import plot_methods, plot_rates
from table_rows import Measurement, envelope_row, prediction_rows, ratios_row, seconds_row
from table_runs import Effort, Job, measure

from hvd_sparse.compression.collectives import COLLECTIVES

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

# Dilations with which two cores can emulate eight hosts, by bits per second.
SWEEP = {100e6: 10.0, 300e6: 10.0, 1e9: 20.0, 3e9: 30.0, 10e9: 60.0, 25e9: 100.0}
SWEPT_VALUES = ("float32", "bfloat16", "int8")  # types of a sweep's dense sums
DILATION = 10.0  # for all other tables


def jobs_of_papers(rows: Sequence[PaperRow], hosts: Sequence[int], gtopk: bool) -> list[Job]:
    """Returns the rows of a paper's table, for each number of hosts."""
    jobs = []
    for row in rows:
        modes = {
            "SLGS": f"TopK(density={row.density}, layers=Layers(layer_wise=False))",
            "LAGS": f"LAGS(density={row.density}, warmup=None)",
        }
        if gtopk:
            modes["gTop-k"] = f"GTopK(density={row.density})"
        jobs += [
            Job(f"{row.model}, {ranks} ranks", row, ranks, row.rate, modes, dilation=DILATION)
            for ranks in hosts
        ]
    return jobs


def jobs_of_sweep(
    row: PaperRow, ranks: int, rates: Sequence[float], methods: Sequence[str] = ()
) -> list[Job]:
    """Returns the rows of one model at several rates, with every collective and our dense sums.

    Args:
        row: The model.
        ranks: Number of ranks.
        rates: Bits per second of each row.
        methods: Names of the methods to take; all if empty.

    Raises:
        typer.BadParameter: A method is not known.
    """
    modes = {
        f"LAGS, {name}": (
            f"LAGS(density={row.density}, warmup=None, adaptive=False, collective={name!r})"
        )
        for name in COLLECTIVES
    }  # fmt: skip
    modes |= {f"Dense, {values}": f"Dense(values={values!r})" for values in SWEPT_VALUES}
    modes["LAGS"] = f"LAGS(density={row.density}, warmup=None)"
    modes = picked(modes, methods)
    return [
        Job(
            f"{rate / 1e6:g} Mb/s, {ranks} ranks", row, ranks, rate, modes,
            dilation=SWEEP.get(rate, DILATION),
        )
        for rate in rates
    ]  # fmt: skip


def results_of(table: str, rows: Sequence[Measurement], settings: dict[str, Any]) -> list[Result]:
    """Returns the tables to show: times, ratios and predictions."""
    verified = all(row.verified for row in rows)
    if table == "sweep":
        meaning = [envelope_row(row, "LAGS") for row in rows if "LAGS" in row.seconds]
    else:
        meaning = [
            ratios_row(row, method, "SLGS")
            for row in rows
            for method in row.paper.steps
            if method not in ("dense", "SLGS")
        ]
    shown = {
        "seconds per step": [seconds_row(row) for row in rows],
        "what they mean": meaning,
        "what the model predicts": prediction_rows(rows),
    }
    return [Result(f"{table}: {title}", own, settings, verified) for title, own in shown.items()]


@app.command()
def main(
    table: Annotated[str, typer.Argument(help="lags, gtopk or sweep")],
    hosts: Annotated[list[int] | None, typer.Option(min=2, help="instead of the papers'")] = None,
    only: Annotated[list[str] | None, typer.Option(help="these models; one for sweep")] = None,
    rate: Annotated[list[float] | None, typer.Option(help="bits per second, for sweep")] = None,
    method: Annotated[list[str] | None, typer.Option(help="of the sweep; else all")] = None,
    local: Annotated[bool, typer.Option("--local", help="this machine, unshaped")] = False,
    dilation: Annotated[float | None, typer.Option(help="waits x, rate / this")] = None,
    repeat: Annotated[float, typer.Option(help="dilation of the repetition; 0: none")] = 20.0,
    repeat_only: Annotated[str | None, typer.Option(help="model or row to repeat alone")] = None,
    steps: Annotated[int, typer.Option(min=1, help="in each turn of a sparse method")] = 5,
    dense_steps: Annotated[int, typer.Option(min=1, help="the same of dense, compute")] = 2,
    turns: Annotated[int, typer.Option(min=1, help="of each method")] = 3,
    untimed: Annotated[int, typer.Option(min=0, help="sparse ones before the first turn")] = 5,
    tuning_skipped: Annotated[int, typer.Option(min=1, help="by LAGS's tuner, of a kind")] = 2,
    tuning_timed: Annotated[int, typer.Option(min=1, help="by LAGS's tuner, of a kind")] = 5,
    memory_limit: Annotated[float, typer.Option(help="GiB, for all ranks together")] = 20.0,
    timeout: Annotated[float, typer.Option(help="seconds for one job")] = 3600.0,
    timelines: Annotated[Path | None, typer.Option(help="folder for traces of rank 0")] = None,
    json: Annotated[Path | None, typer.Option(help="also write everything here")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="take rows that --json holds")] = False,
    plot: Annotated[Path | None, typer.Option(help="draw the times into this file")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="tables in Markdown, too")] = False,
) -> None:
    """Measures a table of the papers."""
    papers = {row.model: row for row in (*GTOPK_TABLE, *LAGS_TABLE, BERT_BASE)}
    makers: dict[str, Callable[[], list[Job]]] = {
        "lags": lambda: jobs_of_papers(LAGS_TABLE, hosts or [16], gtopk=False),
        "gtopk": lambda: jobs_of_papers(GTOPK_TABLE, hosts or [4, 8, 16, 32], gtopk=True),
        "sweep": lambda: jobs_of_sweep(
            papers[(only or ["ResNet-50"])[0]], (hosts or [8])[0], rate or list(SWEEP), method or []
        ),
    }
    if table not in makers:
        raise typer.BadParameter(f"table must be one of {', '.join(makers)}, got {table!r}")
    unknown = set(only or []) - set(papers)
    if unknown:
        raise typer.BadParameter(f"only must name {', '.join(papers)}, got {', '.join(unknown)}")
    jobs = [job for job in makers[table]() if not only or job.paper.model in only]
    if repeat_only is not None:
        if all(repeat_only not in (job.paper.model, job.name) for job in jobs):
            raise typer.BadParameter(
                f"repeat_only must name a row or its model, got {repeat_only!r}"
            )
        jobs = [
            job
            if repeat_only in (job.paper.model, job.name)
            else replace(job, stands_in=repeat_only)
            for job in jobs
        ]
    if not jobs:
        raise typer.BadParameter(f"the table {table} has no row of {', '.join(only or [])}")
    if resume and json is None:
        raise typer.BadParameter("resume takes the rows from --json, which is not given")
    if dilation is not None:
        jobs = [replace(job, dilation=dilation) for job in jobs]
    effort = Effort(
        repeat=repeat or None,
        steps=steps,
        dense_steps=dense_steps,
        turns=turns,
        untimed=untimed,
        memory=memory_limit * GIB,
        timeout=timeout,
        tuning_skipped=tuning_skipped,
        tuning_timed=tuning_timed,
        timelines=timelines,
    )
    launcher: Launcher = LocalLauncher() if local else ClusterLauncher()
    settings = {"table": table, "local": local, **asdict(effort)}
    settings["timelines"] = None if timelines is None else str(timelines)
    known = saved_rows(json) if resume and json is not None else []
    rows: list[Measurement] = []
    for job in jobs:
        rows.append(row_of(job, known) or measure(launcher, job, effort))
        results = results_of(table, rows, settings)
        if json is not None:  # after each row: hours of work are at stake
            save(json, results, rows)
    for result in results:
        result.show()
        if markdown:
            print(result.markdown())
    for remark in (remark for row in rows for remark in row.remarks()):
        print(f"* {remark}" if markdown else remark)
    if plot is not None:
        draw = plot_rates if table == "sweep" else plot_methods
        draw(rows, plot)
    if not all(row.verified for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
