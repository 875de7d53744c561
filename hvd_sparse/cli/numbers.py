"""Numbers that options are given: what is none is refused with what was given.

typer's own checks leave that out. What a number may be is checked by what it is for.
"""

from __future__ import annotations

import typer


def integer(given: str | int) -> int:
    """The parser of an option that takes a whole number; typer hands it defaults, too.

    Raises:
        typer.BadParameter: It is none.
    """
    try:
        return int(given)
    except ValueError:
        raise typer.BadParameter(f"must be a whole number, got {given!r}") from None


def number(given: str | float) -> float:
    """The same, of one that takes any number.

    Raises:
        typer.BadParameter: It is none.
    """
    try:
        return float(given)
    except ValueError:
        raise typer.BadParameter(f"must be a number, got {given!r}") from None
