"""hvd-sparse merge-timelines: joins traces of several ranks, and Horovod's, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from hvd_sparse.cli.files import check_writable
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.timeline.merge import merge_files


def merge_timelines(
    traces: Annotated[
        list[Path], typer.Argument(help="Written by HVD_SPARSE_TIMELINE or HOROVOD_TIMELINE.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the result goes.")],
) -> None:
    """Joins traces of several ranks, and Horovod's, in one file for ui.perfetto.dev."""
    console = Console()
    try:
        check_writable("--output", output)
        count = merge_files(traces, output)
    except (InvalidArgumentError, OSError) as error:
        console.print(f"[bold red]Error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(code=1) from None
    console.print(f"{escape(str(output))}: {count} events", soft_wrap=True)
