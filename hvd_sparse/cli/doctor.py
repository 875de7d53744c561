"""hvd-sparse doctor: checks what is installed, and whether it works together."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hvd_sparse.cli.diagnosis import Interface, Problem, diagnose, gpu_route, interfaces
from hvd_sparse.cli.installation import Facts, examine, transports

console = Console()


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Says what is installed and built, which interfaces work with it, and what the others lack.

    The exit status is 0 if an interface works here and all that is installed works together, else
    1.
    """
    facts = examine()
    problems = diagnose(facts)
    there = interfaces(facts)
    if as_json:
        verdict = {
            "ok": not problems,
            "transports": transports(facts),
            "interfaces": [asdict(one) for one in there],
            "problems": [asdict(problem) for problem in problems],
        }
        print(json.dumps({**facts, **verdict}, indent=2))
    else:
        show_facts(facts)
        show_verdict(problems, there, transports(facts))
    raise typer.Exit(code=1 if problems else 0)


def show_facts(facts: Facts) -> None:
    """Prints the facts, one line each."""
    core, horovod, mpi = facts["hvd_sparse"], facts["horovod"] or {}, facts["mpi"] or {}
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")

    def row(name: str, value: str | None, *details: str | None) -> None:
        found = [str(part) for part in (value, *details) if part]
        table.add_row(name, escape(", ".join(found)) if value else "[dim]not found[/]")

    row("hvd_sparse", core["version"], core["folder"])
    build = core["build"] or {"parts": {}}
    row("  built by", build.get("compiler"), build.get("build_type"))
    for part, state in build["parts"].items():
        row(f"  {part}", "with" if state["built"] else "without", state["detail"])
    row("  CPU kernels", core["instruction_set"])
    row("Python", facts["python"])
    distributed = facts["torch_distributed"] or {}
    backends = ", ".join(distributed.get("backends", []))
    row("PyTorch", facts["torch"], f"torch.distributed with {backends}" if backends else None)
    row("TensorFlow", facts["tensorflow"])
    parts = ("torch", "tensorflow", "mpi", "gloo", "nccl")
    with_parts = "with " + ", ".join(part for part in parts if horovod.get(part))
    row("Horovod", horovod.get("version"), with_parts)
    of_gpus = (mpi["memory_problem"] or "CUDA-aware") if "memory_problem" in mpi else None
    row("MPI", core["mpi_library"], mpi.get("thread_level"), mpi.get("mpirun"), of_gpus)
    cuda = facts.get("cuda")
    if cuda is not None:  # otherwise the core was built without CUDA, as its line says
        row("CUDA", ", ".join(cuda.get("devices", [])) or "no device", cuda.get("error"))
    nccl = facts.get("nccl")
    if nccl is not None:
        row("NCCL", nccl.get("version") or "none", nccl.get("path"), nccl.get("error"))
    if facts.get("between_gpus") is not None:
        row("blocks of GPUs", gpu_route(facts))
    console.print(table)


def show_verdict(problems: list[Problem], there: list[Interface], means: list[str]) -> None:
    """Prints each problem with its remedy, then each interface: what it uses, or what it lacks."""
    console.print()
    for number, problem in enumerate(problems, start=1):
        console.print(f"[bold red]Problem {number}:[/] {escape(problem.what)}", soft_wrap=True)
        console.print(f"  [bold]do:[/] {escape(problem.do)}", soft_wrap=True)
    for one in there:
        if not one.lacks:
            default, *others = means if one.launcher == "Horovod" else ["TCP"]
            over = default + "".join(
                f", or {other} with HVD_SPARSE_TRANSPORT={other.lower()}" for other in others
            )
            console.print(
                f"[bold green]Ready:[/] {one.name} under {one.launcher}, over {over}",
                soft_wrap=True,
            )
            continue
        reasons = "; ".join(lack.what for lack in one.lacks)
        console.print(
            f"[bold]Not ready:[/] {one.name} under {one.launcher}: {escape(reasons)}",
            soft_wrap=True,
        )
        for lack in one.lacks:
            if lack not in problems:
                console.print(f"  [bold]to have it:[/] {escape(lack.do)}", soft_wrap=True)
