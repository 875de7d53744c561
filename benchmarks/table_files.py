"""Rows of a table in a file, so that hours of measuring can be interrupted and resumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from paper_figures import PaperRow
from reporting import Result, write
from table_rows import Measurement
from table_runs import Job


def save(file: Path, results: Sequence[Result], rows: Sequence[Measurement]) -> None:
    """Writes the tables as shown, and the rows that they were made from."""
    write(
        file,
        {
            "results": [result.as_json() for result in results],
            "rows": [asdict(row) for row in rows],
        },
    )


def saved_rows(file: Path) -> list[Measurement]:
    """Returns the rows that `save` wrote; none if there is no such file."""
    if not file.exists():
        return []
    rows = json.loads(file.read_text())["rows"]
    return [Measurement(**{**row, "paper": PaperRow(**row["paper"])}) for row in rows]


def row_of(job: Job, rows: Sequence[Measurement]) -> Measurement | None:
    """Returns the saved measurement of a job, or None."""
    for row in rows:
        if (row.name, row.paper, row.rate) == (job.name, job.paper, job.rate):
            return row
    return None
