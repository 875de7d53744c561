"""Reports of benchmarks: times with their spread and other facts, as a table and as JSON."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

# Least width of a table, in terminal columns.
WIDTH = 160


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one thing, in milliseconds.

    Attributes:
        median: Median time.
        low: First quartile.
        high: Third quartile.
        mean: Mean of all repetitions, rare slow ones included.
        p99: 99th percentile; of fewer than 100 repetitions, nearly the longest.
        repetitions: Number of repetitions.
    """

    median: float
    low: float
    high: float
    mean: float
    p99: float
    repetitions: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Computes the timing of at least two measurements in seconds."""
        ms = [1e3 * second for second in seconds]
        hundredths = statistics.quantiles(ms, n=100, method="inclusive")
        low, median, high, p99 = (hundredths[i - 1] for i in (25, 50, 75, 99))
        return cls(median, low, high, statistics.fmean(ms), p99, len(ms))

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g}-{self.high:.3g})"


@dataclass(frozen=True)
class Row:
    """One line of a result.

    Attributes:
        name: Name of the measured thing.
        timing: Its time; None if nothing was timed.
        facts: Column titles and values.
    """

    name: str
    timing: Timing | None
    facts: dict[str, float | int | str]


@dataclass(frozen=True)
class Result:
    """A table: rows that were measured side by side.

    Attributes:
        title: Description that the rows share.
        rows: Rows in the order in which they are shown.
        settings: Settings of the measurement.
        verified: True if every checked result was right.
    """

    title: str
    rows: Sequence[Row]
    settings: dict[str, Any]
    verified: bool

    def show(self) -> None:
        """Prints the rows as a table."""
        table = Table(title=self.title, caption="verified" if self.verified else "NOT VERIFIED")
        first, *others = self._columns()
        table.add_column(first, no_wrap=True)
        for column in others:
            table.add_column(column, justify="right", no_wrap="quartiles" in column)
        for cells in self._cells():
            table.add_row(*cells)
        # Print in one piece, and plainly if only a launcher pretends that there is a terminal.
        console = Console(width=max(Console().width, WIDTH), force_terminal=sys.stderr.isatty())
        with console.capture() as text:
            console.print(table)
        print(text.get(), end="", flush=True)

    def markdown(self) -> str:
        """Returns the rows as a table in Markdown."""
        columns = self._columns()
        lines = [columns, ["---", *["--:"] * (len(columns) - 1)], *self._cells()]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        verified = "" if self.verified else "\n\nNOT VERIFIED"
        return f"{self.title}\n\n{table}{verified}\n"

    def as_json(self) -> dict[str, Any]:
        """Returns everything as plain values, for JSON."""
        return asdict(self)

    def _timed(self) -> bool:
        return any(row.timing for row in self.rows)

    def _facts(self) -> list[str]:
        return list(dict.fromkeys(fact for row in self.rows for fact in row.facts))

    def _columns(self) -> list[str]:
        return ["", *["ms, median (quartiles)"] * self._timed(), *self._facts()]

    def _cells(self) -> Iterable[list[str]]:
        for row in self.rows:
            timing = [str(row.timing or "")] * self._timed()
            values = (row.facts.get(fact, "") for fact in self._facts())
            yield [row.name, *timing, *(_shown(value) for value in values)]


def _shown(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def report(
    title: str, rows: Sequence[Row], *, settings: dict[str, Any], verified: bool, file: Path | None
) -> None:
    """Prints the rows as a table, and writes them as JSON if a file is given."""
    result = Result(title, rows, settings, verified)
    result.show()
    if file is not None:
        write(file, result.as_json())


def write(file: Path, content: object) -> None:
    """Writes anything as JSON."""
    file.write_text(json.dumps(content, indent=1) + "\n")
