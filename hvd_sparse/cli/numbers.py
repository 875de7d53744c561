"""Parsers of numeric options, whose errors quote the text that was given.

typer's own errors do not. The limits of a number are checked by the code that uses it.
"""

from __future__ import annotations

import typer


def integer(given: str | int) -> int:
    """Parses an option that takes a whole number; typer passes defaults through it, too.

    Raises:
        typer.BadParameter: The text is not a whole number.
    """
    try:
        return int(given)
    except ValueError:
        raise typer.BadParameter(f"must be a whole number, got {given!r}") from None


def number(given: str | float) -> float:
    """Parses an option that takes any number; typer passes defaults through it, too.

    Raises:
        typer.BadParameter: The text is not a number.
    """
    try:
        return float(given)
    except ValueError:
        raise typer.BadParameter(f"must be a number, got {given!r}") from None
