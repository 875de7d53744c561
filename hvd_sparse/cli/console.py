"""The console on which the commands print tables: its width, bold type and colours."""

from __future__ import annotations

import os

from rich.console import Console

# Width of the widest tables; pipes and horovodrun do not pass on the terminal's width.
COLUMNS = 132


def wide_console() -> Console:
    """Returns a console that cuts no number of a table, even if wider than the terminal."""
    # Open MPI gives each rank a terminal of its own, even if mpirun's output goes to a file.
    hidden = "OMPI_COMM_WORLD_SIZE" in os.environ and "FORCE_COLOR" not in os.environ
    return Console(
        width=max(COLUMNS, Console().width),
        highlight=False,
        force_terminal=False if hidden else None,
    )
