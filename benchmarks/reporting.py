"""What every benchmark reports: medians with their spread, as a table and as JSON."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one thing, in milliseconds.

    Attributes:
        median: Half of the repetitions took longer.
        low: First quartile.
        high: Third quartile.
        repetitions: How many there were.
    """

    median: float
    low: float
    high: float
    repetitions: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """The timing of at least two measurements in seconds."""
        low, median, high = (
            1e3 * quartile for quartile in statistics.quantiles(seconds, n=4, method="inclusive")
        )
        return cls(median, low, high, len(seconds))

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g}-{self.high:.3g})"


@dataclass(frozen=True)
class Row:
    """One line of a result: what was timed, and what is known about it.

    Attributes:
        name: What was timed.
        timing: How long it took.
        facts: Column titles and values.
    """

    name: str
    timing: Timing
    facts: dict[str, float | int | str]


def report(
    title: str, rows: Sequence[Row], *, settings: dict[str, Any], verified: bool, file: Path | None
) -> None:
    """Prints the rows as a table; writes them to `file` as JSON where one is given."""
    table = Table(title=title, caption="verified" if verified else "NOT VERIFIED")
    facts = list(dict.fromkeys(fact for row in rows for fact in row.facts))
    table.add_column("")
    for column in ("ms, median (quartiles)", *facts):
        table.add_column(column, justify="right")
    for row in rows:
        values = (row.facts.get(fact, "") for fact in facts)
        shown = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in values)
        table.add_row(row.name, str(row.timing), *shown)
    # In one piece, and plain where a launcher pretends that there is a terminal.
    console = Console(width=max(Console().width, 130), force_terminal=sys.stderr.isatty())
    with console.capture() as text:
        console.print(table)
    print(text.get(), end="", flush=True)
    if file is not None:
        result = {"settings": settings, "verified": verified, "rows": [asdict(row) for row in rows]}
        file.write_text(json.dumps(result, indent=1) + "\n")
