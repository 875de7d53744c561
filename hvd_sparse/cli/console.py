"""How the commands print their tables: how wide, and whether in bold and colours."""

from __future__ import annotations

import os

from rich.console import Console

# The widest tables need so many columns; pipes and horovodrun pass on no width of a terminal.
COLUMNS = 120


def wide_console() -> Console:
    """A console on which no number of a table is cut, also where it is wider than the terminal."""
    # Open MPI gives each rank a terminal of its own, also where mpirun's output goes into a file.
    hidden = "OMPI_COMM_WORLD_SIZE" in os.environ and "FORCE_COLOR" not in os.environ
    return Console(
        width=max(COLUMNS, Console().width),
        highlight=False,
        force_terminal=False if hidden else None,
    )
