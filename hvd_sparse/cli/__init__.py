"""The command line: hvd-sparse, or python -m hvd_sparse. One file per command."""

from __future__ import annotations

from typing import Annotated

import typer

from hvd_sparse import __version__
from hvd_sparse.cli import bench, doctor, merge_timelines, plan

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
for command in (bench.bench, doctor.doctor, plan.plan, merge_timelines.merge_timelines):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Sparse gradient exchange for Horovod."""
