"""How wide the commands print their tables."""

from __future__ import annotations

from rich.console import Console

# The widest tables need so many columns; pipes and horovodrun pass on no width of a terminal.
COLUMNS = 120


def wide_console() -> Console:
    """A console on which no number of a table is cut, also where it is wider than the terminal."""
    return Console(width=max(COLUMNS, Console().width), highlight=False)
