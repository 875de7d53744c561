"""Times a step, and its bytes, under DDP (its allreduce, PyTorch's hooks, LAGS) and Horovod.

    python benchmarks/ddp_hooks.py table                                    (as root)
    python benchmarks/ddp_hooks.py table --local --hosts 2 --model ResNet-20 --dilation .2
    python benchmarks/ddp_hooks.py overhead

table      a step of each method on 4 and 8 hosts of a virtual cluster, at 100 Mb/s and 1 Gb/s
overhead   a step of LAGS by hook less one by Horovod, on this machine: two commands in turn

Computing is replayed as waiting, and dilated with the links; replay.py, which runs on the ranks,
and paper_tables.py say how. Methods under DDP take turns in one job, those of Horovod in the next
one on the same hosts. Horovod's sums go over Gloo, as DDP's do, and sparse exchanges over TCP.

s     a step's seconds on the slowest rank, divided by the dilation: the median
MB    bytes that a host's interface has sent in a step, by its own counter, headers included

PowerSGD has its defaults, but for start_powerSGD_iter: 2, the least, since its first steps are
DDP's. It needs a single bucket over gloo. DDP's other buckets hold 3 MiB unless --bucket-mb says
otherwise: as large a part of WRN-16-4 as the default is of ResNet-50. LAGS has no warm-up, whose
steps send more. It is adaptive: its tuner's steps come first.

Each job's result is kept in a file of --folder, and not measured again with the same settings.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from clusters import ClusterLauncher, Hosts, Launcher, LocalLauncher
from memory import GIB
from paper_figures import PaperRow
from paper_models import MODELS
from reporting import Result, Row, Timing, report, write
from table_checks import cpu_problems
from table_runs import Effort, Job, run_replay

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

FOLDER = Path("build/ddp_hooks")
LAGS = "LAGS(warmup=None)"
ALWAYS_SPARSE = "LAGS(warmup=None, adaptive=False)"
ALONE, BY_HOOK, BY_HOROVOD = "computing alone", "LAGS by hook", "LAGS by Horovod"
# Modes of replay.py by the method's title, for each library.
DDP, HOROVOD = "DDP", "Horovod"
METHODS: dict[str, dict[str, str]] = {
    DDP: {
        ALONE: "compute",
        "DDP": "DDP",
        "DDP, fp16": 'DDP(hook="fp16")',
        "DDP, PowerSGD 1": 'DDP(hook="powersgd", matrix_rank=1)',
        "DDP, PowerSGD 4": 'DDP(hook="powersgd", matrix_rank=4)',
        BY_HOOK: LAGS,
    },
    HOROVOD: {"Horovod, dense": "dense", BY_HOROVOD: LAGS},
}
# Dilations with which two cores can emulate eight hosts, by bits per second.
DILATIONS = {100e6: 5.0, 1e9: 10.0}
DEFAULT_DILATION = 10.0
# A step of WRN-16-4 on 128 images at 1.7 TFLOP/s: GPUs of the gTop-k paper reach 2.5 with VGG-16.
FORWARD, BACKWARD = 0.06, 0.12
BUCKET_MB = 3
AIM = 0.05  # of a step, for what the hook costs more than Horovod's front-end


@dataclass(frozen=True)
class Cell:
    """One network.

    Attributes:
        job: Model, times, hosts, rate and dilation; its name is shown.
        effort: Amount of measuring.
        bucket_mb: DDP's bucket_cap_mb.
        folder: The folder of results.
    """

    job: Job
    effort: Effort
    bucket_mb: int
    folder: Path

    def settings(self) -> dict[str, Any]:
        """Returns everything that a result depends on, but for the library."""
        options = {"bucket_mb": self.bucket_mb, "methods": METHODS}
        whole: dict[str, Any] = asdict(self.job) | asdict(self.effort) | options
        return whole

    def file(self, library: str) -> Path:
        """Returns the file of one job's result."""
        name = f"{self.job.paper.model}_{self.job.ranks}hosts_{self.job.rate / 1e6:g}mbit"
        return self.folder / f"{name}_{library}.json"

    def known(self, library: str) -> Any | None:
        """Returns the result that was kept; None if there is none with these settings."""
        file = self.file(library)
        if not file.exists():
            return None
        kept = json.loads(file.read_text())
        return kept["result"] if kept["settings"] == self.settings() else None

    def measure(self, launcher: Launcher) -> list[Any]:
        """Returns the results of all jobs, of which missing ones are measured and kept."""
        found = {library: self.known(library) for library in METHODS}
        missing = [library for library, result in found.items() if result is None]
        if missing:
            job = self.job
            with launcher.hosts(job.ranks, job.rate / job.dilation) as hosts:
                for library in missing:
                    found[library] = self._measured(hosts, library)
        return list(found.values())

    def _measured(self, hosts: Hosts, library: str) -> Any:
        modes = list(METHODS[library].values())
        result = run(library, hosts, self.job, self.effort, modes, self.bucket_mb)
        file = self.file(library)
        half_written = file.with_suffix(".part")
        write(half_written, {"settings": self.settings(), "result": result})
        half_written.rename(file)
        return result


def run(
    library: str, hosts: Hosts, job: Job, effort: Effort, modes: Sequence[str], bucket_mb: int
) -> Any:
    """Runs replay.py once, over DDP or Horovod, and returns its result."""
    if library == DDP:
        return run_replay(hosts, job, effort, modes, ddp=True, bucket_mb=bucket_mb)
    return run_replay(hosts, job, effort, modes, gloo=True)


def job_of(model: str, hosts: int, rate: float, seconds: tuple[float, float], by: float) -> Job:
    """Returns the job of one network; `seconds` of forward and backward, `by` is the dilation."""
    forward, backward = seconds
    row = PaperRow(
        model=model, ranks=hosts, rate=rate, density=0.01, forward=forward, backward=backward,
        steps={},
    )  # fmt: skip
    return Job(f"{hosts} hosts, {rate / 1e6:g} Mb/s", row, hosts, rate, {}, by)


def by_title(results: Sequence[Any]) -> dict[str, Any]:
    """Returns what replay.py told of each method, by title."""
    modes = {}
    for library, result in zip(METHODS, results, strict=True):
        told = {mode["mode"]: mode for mode in result["modes"]}
        modes |= {title: told[mode] for title, mode in METHODS[library].items()}
    return modes


def table_of(cells: Mapping[str, tuple[float, dict[str, Any]]], settings: dict[str, Any]) -> Result:
    """Returns the table.

    Args:
        cells: Dilation, and what was told of each method, by the network's name.
        settings: Settings of the measurement.
    """
    rows = []
    for title in [title for methods in METHODS.values() for title in methods]:
        facts: dict[str, float | int | str] = {}
        for name, (dilation, modes) in cells.items():
            facts[f"{name}: s"] = statistics.median(modes[title]["seconds"]) / dilation
            facts[f"{name}: MB"] = modes[title]["bytes_on_wire"] / 1e6
        rows.append(Row(title, None, facts))
    verified = all(mode["verified"] for _, modes in cells.values() for mode in modes.values())
    return Result("seconds and megabytes of a step", rows, settings, verified)


def remarks(cells: Mapping[str, tuple[float, dict[str, Any]]]) -> list[str]:
    """Returns what LAGS chose on each network, and where the machine was too busy."""
    told = []
    for name, (_, modes) in cells.items():
        for title in (BY_HOOK, BY_HOROVOD):
            settling = modes[title]["settling"]
            if settling is None:
                continue
            buckets = settling["buckets"]
            sent = sum(one["density"] * one["numel"] for one in buckets)
            share = sent / sum(one["numel"] for one in buckets)
            chose = f"sends {share:.1%} of the entries" if settling["sparse"] else "stays dense"
            told.append(f"{name}: {title} {chose}, after {settling['steps']} steps")
        cpu = {title: mode["cpu_share"] for title, mode in modes.items()}
        told += [f"{name}: {problem}" for problem in cpu_problems(cpu)]
    return told


Model = Annotated[str, typer.Option(help="of paper_models")]
Forward = Annotated[float, typer.Option(help="seconds of a forward pass")]
Backward = Annotated[float, typer.Option(help="seconds of a backward pass")]
BucketMb = Annotated[int, typer.Option(min=1, help="DDP's bucket_cap_mb")]


def check_model(model: str) -> None:
    """Raises BadParameter if there is no such model."""
    if model not in MODELS:
        raise typer.BadParameter(f"model must be one of {', '.join(MODELS)}, got {model!r}")


@app.command()
def table(
    hosts: Annotated[list[int] | None, typer.Option(help="powers of two; repeatedly")] = None,
    rate: Annotated[list[float] | None, typer.Option(help="bits per second; repeatedly")] = None,
    model: Model = "WRN-16-4",
    forward: Forward = FORWARD,
    backward: Backward = BACKWARD,
    bucket_mb: BucketMb = BUCKET_MB,
    dilation: Annotated[float | None, typer.Option(help="instead of the rate's own")] = None,
    steps: Annotated[int, typer.Option(min=1, help="in each turn of a sparse method")] = 2,
    turns: Annotated[int, typer.Option(min=1, help="of each method")] = 2,
    untimed: Annotated[int, typer.Option(min=1, help="steps before the first turn")] = 1,
    local: Annotated[bool, typer.Option("--local", help="on this machine, no link shaped")] = False,
    folder: Annotated[Path, typer.Option(help="of the results")] = FOLDER,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="the table in Markdown, too")
    ] = False,
) -> None:
    """Measures what is missing, and prints the table."""
    check_model(model)
    counts, rates = hosts or [4, 8], rate or list(DILATIONS)
    if any(count < 2 or count & (count - 1) for count in counts):
        raise typer.BadParameter(f"hosts must be powers of two from 2 on, got {counts}")
    folder.mkdir(parents=True, exist_ok=True)
    effort = Effort(
        repeat=None, steps=steps, dense_steps=1, turns=turns, untimed=untimed, memory=20.0 * GIB,
        timeout=600.0, tuning_skipped=1, tuning_timed=1,
    )  # fmt: skip
    launcher: Launcher = LocalLauncher() if local else ClusterLauncher()
    cells: dict[str, tuple[float, dict[str, Any]]] = {}
    for bits in rates:
        for count in counts:
            by = dilation or DILATIONS.get(bits, DEFAULT_DILATION)
            job = job_of(model, count, bits, (forward, backward), by)
            cells[job.name] = by, by_title(Cell(job, effort, bucket_mb, folder).measure(launcher))
    settings = {"model": model, "local": local, **asdict(effort)}
    result = table_of(cells, settings)
    result.show()
    if markdown:
        print(result.markdown())
    print("\n".join(remarks(cells)))
    if not result.verified:
        raise typer.Exit(1)


@app.command()
def overhead(
    ranks: Annotated[int, typer.Option(min=2, help="a power of two")] = 2,
    model: Model = "WRN-16-4",
    forward: Forward = FORWARD,
    backward: Backward = BACKWARD,
    bucket_mb: BucketMb = BUCKET_MB,
    steps: Annotated[int, typer.Option(min=2, help="in each turn of each command")] = 30,
    turns: Annotated[int, typer.Option(min=2, help="of each command")] = 4,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write it here")] = None,
) -> None:
    """Times LAGS by hook and by Horovod in turn, sparse in any case, without a network."""
    check_model(model)
    job = job_of(model, ranks, 1e9, (forward, backward), 1.0)
    effort = Effort(
        repeat=None, steps=steps, dense_steps=10, turns=1, untimed=5, memory=20.0 * GIB,
        timeout=300.0,
    )  # fmt: skip
    seconds: dict[str, list[float]] = {BY_HOOK: [], BY_HOROVOD: []}
    alone: list[float] = []
    verified = True
    with LocalLauncher().hosts(ranks, job.rate) as hosts:
        for turn in range(turns):
            for title in sorted(seconds, reverse=turn % 2 == 1):  # each is first in half the turns
                library = DDP if title == BY_HOOK else HOROVOD
                modes = ["compute", ALWAYS_SPARSE]
                told = run(library, hosts, job, effort, modes, bucket_mb)
                compute, lags = told["modes"]
                seconds[title].append(statistics.median(lags["seconds"]))
                alone.append(statistics.median(compute["seconds"]))
                verified &= lags["verified"]
    more = [
        (hook - horovod) / horovod
        for hook, horovod in zip(seconds[BY_HOOK], seconds[BY_HOROVOD], strict=True)
    ]
    facts: dict[str, float | int | str] = {
        "more than Horovod, of a step (%)": 100 * statistics.median(more),
        "least (%)": 100 * min(more),
        "most (%)": 100 * max(more),
        "aim (%)": 100 * AIM,
    }
    rows = [
        Row(BY_HOOK, Timing.of(seconds[BY_HOOK]), facts),
        Row(BY_HOROVOD, Timing.of(seconds[BY_HOROVOD]), {}),
        Row(ALONE, Timing.of(alone), {}),
    ]
    settings = {
        "model": model, "ranks": ranks, "steps": steps, "turns": turns, "bucket_mb": bucket_mb
    }  # fmt: skip
    title = f"a step of {model}, {ranks} ranks, medians of {turns} turns"
    report(title, rows, settings=settings, verified=verified, file=json_file)
    if not verified:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
