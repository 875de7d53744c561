"""The command line: hvd-sparse, or python -m hvd_sparse. One file per command."""

from __future__ import annotations

import typer

from hvd_sparse.cli import bench, doctor, merge_timelines, plan

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
for command in (bench.bench, doctor.doctor, plan.plan, merge_timelines.merge_timelines):
    app.command()(command)


@app.callback()
def main() -> None:
    """Sparse gradient exchange for Horovod."""
