"""The command line: hvd-sparse, or python -m hvd_sparse. One file per command.

Without the compiled core there are doctor, which says what is wrong with it, and merge-timelines;
the other commands say that they need it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from hvd_sparse import __version__
from hvd_sparse.cli import doctor, merge_timelines

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def _refusal(name: str, problem: str) -> Callable[[typer.Context], None]:
    """Returns the command that stands for one that needs the core."""

    def refuse(context: typer.Context) -> None:
        """Needs the compiled core: see hvd-sparse doctor."""
        typer.echo(
            f"hvd-sparse {name} needs the compiled core, which cannot be loaded ({problem}): "
            "hvd-sparse doctor says more",
            err=True,
        )
        raise typer.Exit(1)

    return refuse


try:
    from hvd_sparse.cli import bench, plan
except ImportError as error:
    for _name in ("bench", "plan"):
        _any = {"allow_extra_args": True, "ignore_unknown_options": True}
        app.command(_name, context_settings=_any)(_refusal(_name, str(error)))
else:
    app.command()(bench.bench)
    app.command()(plan.plan)
app.command()(doctor.doctor)
app.command()(merge_timelines.merge_timelines)


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
    """Sparse gradient exchange for PyTorch's DistributedDataParallel and for Horovod."""
