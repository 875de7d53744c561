"""Measures rows of the papers' tables on a launcher's hosts."""

from __future__ import annotations

import json
import re
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from clusters import Hosts, Launcher
from memory import GIB, most_ranks, needed
from paper_figures import PaperRow
from paper_models import MODELS
from predictions import predictions
from table_checks import Message, cpu_problems, latency, message_problems, repetition_problems
from table_rows import COMPUTE, DENSE, Measurement

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Job:
    """A row to measure.

    Attributes:
        name: Name of the row; unique among the jobs of a paper and rate.
        paper: Model, times and density.
        ranks: Number of ranks wanted.
        rate: Bits per second of the emulated network.
        modes: Modes of replay.py by the method's name, without compute only and dense.
        dilation: Dilation of the waits and, inversely, of the rate.
        stands_in: Row, or model whose rows are repeated at another dilation in place of this one;
            None: this row itself is repeated.
    """

    name: str
    paper: PaperRow
    ranks: int
    rate: float
    modes: dict[str, str]
    dilation: float
    stands_in: str | None = None


@dataclass(frozen=True)
class Effort:
    """Amount of measuring.

    Attributes:
        repeat: Dilation of the repetition; None for none.
        steps: Number of steps in each turn of each sparse method.
        dense_steps: Number of steps in each turn of dense, and of compute only.
        turns: Number of turns of each method.
        untimed: Number of steps of each sparse method before the first turn.
        memory: Bytes for all ranks together.
        timeout: Seconds for one job.
        tuning_skipped: Number of steps of each kind that LAGS's tuner skips.
        tuning_timed: Number of steps of each kind that it times.
        timelines: Folder for a trace of every job over MPI; None for none.
    """

    repeat: float | None
    steps: int
    dense_steps: int
    turns: int
    untimed: int
    memory: float
    timeout: float
    tuning_skipped: int = 2
    tuning_timed: int = 5
    timelines: Path | None = None


@dataclass(frozen=True)
class RowAtDilation:
    """A row measured at one dilation: undilated seconds, predictions and CPU shares, by method."""

    seconds: dict[str, float]
    predicted: dict[str, float]
    cpu: dict[str, float]
    alpha: float | None
    problems: list[str]
    verified: bool
    raw: list[Any]


def run_replay(
    hosts: Hosts,
    job: Job,
    effort: Effort,
    modes: Sequence[str],
    *,
    gloo: bool = False,
    ddp: bool = False,
    bucket_mb: int | None = None,
) -> Any:
    """Runs replay.py once, over Horovod's MPI, its Gloo or DDP, and returns its result."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        options = {
            "model": job.paper.model,
            "forward": job.paper.forward,
            "backward": job.paper.backward,
            "dilation": job.dilation,
            "steps": effort.steps,
            "dense-steps": effort.dense_steps,
            "turns": effort.turns,
            "untimed": effort.untimed,
            "tuning-skipped": effort.tuning_skipped,
            "tuning-timed": effort.tuning_timed,
            "interface": hosts.interface,
            "memory-limit": effort.memory / GIB,
            "json": file,
        }
        if gloo:
            options["gloo"] = hosts.address()
        if ddp:
            options["ddp"] = hosts.address()
        if bucket_mb is not None:
            options["bucket-mb"] = bucket_mb
        program = [str(FOLDER / "replay.py")]
        program += [f"--{name}={value}" for name, value in options.items()]
        program += [f"--mode={mode}" for mode in modes]
        # Horovod's idle cycle every millisecond is not part of the ratio that dilation preserves,
        # so it is dilated. Its cache holds the names of one training by default: with several that
        # take turns, dense steps would be negotiated again each time.
        env = {"HOROVOD_CYCLE_TIME": f"{job.dilation:g}", "HOROVOD_CACHE_CAPACITY": "8192"}
        if effort.timelines is not None and not gloo and not ddp:
            env["HVD_SPARSE_TIMELINE"] = str(timeline_file(effort, job, modes))
        hosts.run(program, env=env, timeout=effort.timeout)
        return json.loads(file.read_text())


def timeline_file(effort: Effort, job: Job, modes: Sequence[str]) -> Path:
    """Returns the file of rank 0's trace, a different one for each job."""
    assert effort.timelines is not None
    effort.timelines.mkdir(parents=True, exist_ok=True)
    names = {mode: method for method, mode in job.modes.items()}
    methods = "+".join(names[mode] for mode in modes if mode in names) or "dense"
    name = f"{job.name} {job.dilation:g} {methods}"
    return effort.timelines / f"{re.sub(r'[^A-Za-z0-9.+-]+', '_', name)}.json"


def run_messages(hosts: Hosts, timeout: float) -> list[Message]:
    """Times messages of several sizes between two of the hosts."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "messages.json"
        program = [str(FOLDER / "messages.py"), f"--address={hosts.address()}", f"--json={file}"]
        hosts.run(program, env={}, timeout=timeout)
        return [Message(**message) for message in json.loads(file.read_text())]


def jobs_of(job: Job, ranks: int, memory: float) -> list[tuple[list[str], bool]]:
    """Returns lists of modes to measure side by side, each with true for Gloo, false for MPI.

    Over MPI all modes take turns in one job if the memory suffices; otherwise each has a job of its
    own, on the same hosts. Over Gloo only dense is measured: Horovod's idle cycles over Gloo keep
    many ranks' processors busy.
    """
    dense = ["compute", "dense"]
    together = [*dense, *job.modes.values()]
    over_mpi = [together]
    if needed(MODELS[job.paper.model], ranks, together) > memory:
        over_mpi = [dense, *(["compute", mode] for mode in job.modes.values())]
    return [*((modes, False) for modes in over_mpi), (["dense"], True)]


def measure_once(launcher: Launcher, job: Job, ranks: int, effort: Effort) -> RowAtDilation:
    """Measures a row at one dilation."""
    method_of = {mode: method for method, mode in job.modes.items()}
    seconds: dict[str, list[float]] = {}
    predicted: dict[str, float] = {}
    cpu: dict[str, float] = {}
    raw: list[Any] = []
    alpha, problems = None, []
    with launcher.hosts(ranks, job.rate / job.dilation) as hosts:
        if hosts.rate is None:
            problems.append("links are not shaped")
        else:
            messages = run_messages(hosts, effort.timeout)
            alpha = latency(messages, hosts.rate, hosts.frame)
            problems += message_problems(messages, hosts.rate, hosts.frame)
            raw.append({"messages": [asdict(message) for message in messages], "alpha": alpha})
        raw += [
            run_replay(hosts, job, effort, modes, gloo=gloo)
            for modes, gloo in jobs_of(job, ranks, effort.memory)
        ]
    results = [result for result in raw if "modes" in result]
    for result in results:
        dense = DENSE[result["transport"] == "Gloo"]
        names = {"compute": COMPUTE, "dense": dense, **method_of}
        for each in result["modes"]:
            method = names[each["mode"]]
            if each["settling"] is not None:
                told = predictions(each["settling"], ["dense", *method_of])
                predicted |= {names[mode]: told[mode] / job.dilation for mode in told}
            seconds.setdefault(method, []).extend(each["seconds"])
            cpu[method] = max(cpu.get(method, 0.0), each["cpu_share"])
    return RowAtDilation(
        seconds={
            method: statistics.median(all_) / job.dilation for method, all_ in seconds.items()
        },
        predicted=predicted,
        cpu=cpu,
        alpha=alpha,
        problems=problems,
        verified=all(each["verified"] for result in results for each in result["modes"]),
        raw=raw,
    )


def measure(launcher: Launcher, job: Job, effort: Effort) -> Measurement:
    """Measures a row, with everything that decides if it counts."""
    least = ["compute", next(iter(job.modes.values()))]
    ranks = most_ranks(MODELS[job.paper.model], job.ranks, least, effort.memory)
    notes = [] if ranks == job.ranks else [f"{ranks} ranks: {job.ranks} do not fit into memory"]
    once = measure_once(launcher, job, ranks, effort)
    raw, problems = list(once.raw), [*once.problems, *cpu_problems(once.cpu)]
    if once.alpha is not None:
        latency_us = 1e6 * once.alpha / job.dilation
        notes.append(
            f"dilation {job.dilation:g}, emulates {job.rate / 1e6:g} Mb/s with {latency_us:.0f} us"
        )
    verified = once.verified
    if effort.repeat is None:
        problems.append("not repeated at another dilation")
    elif job.stands_in is not None:
        notes.append(f"at another dilation, the row of {job.stands_in} was repeated in its place")
    else:
        again = measure_once(launcher, replace(job, dilation=effort.repeat), ranks, effort)
        problems += [f"{problem} (dilation {effort.repeat:g})" for problem in again.problems]
        problems += repetition_problems(once.seconds, again.seconds)
        verified &= again.verified
        raw += again.raw
    return Measurement(
        name=job.name,
        paper=job.paper,
        ranks=ranks,
        rate=job.rate,
        seconds=once.seconds,
        predicted=once.predicted,
        cpu=once.cpu,
        notes=notes,
        problems=problems,
        verified=verified,
        raw=raw,
    )
