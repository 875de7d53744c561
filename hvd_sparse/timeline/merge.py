"""Merges traces, of several ranks or of Horovod, into one that Perfetto shows side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hvd_sparse.errors import InvalidArgumentError

_START = "start_time_since_epoch_in_micros"

Event = dict[str, Any]


def merge_files(paths: Sequence[Path], output: Path) -> int:
    """Writes the events of all traces, on one clock, to `output`.

    Args:
        paths: Traces of this package and of Horovod; also of processes that died.
        output: The file to write, a JSON array of events.

    Returns:
        The number of events.

    Raises:
        InvalidArgumentError: A file cannot be read or is not such a trace, or two of them use the
            same rows.
        OSError: The output cannot be written.
    """
    events = merge({str(path): read(path) for path in paths})
    lines = ",\n".join(json.dumps(event) for event in events)
    output.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return len(events)


def read(path: Path) -> list[Event]:
    """Reads the events of a trace, whose closing bracket may be missing.

    Raises:
        InvalidArgumentError: The file cannot be read, or is not an array of events.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace").rstrip()
    except OSError as error:
        raise InvalidArgumentError(f"cannot read a trace from {path}: {error}") from None
    for candidate in (text, text.rstrip(",") + "]"):
        try:
            events = json.loads(candidate)
        except json.JSONDecodeError:
            continue
        if isinstance(events, list) and all(map(_is_event, events)):
            return events
    raise InvalidArgumentError(f"'{path}' must hold a JSON array of trace events; it does not")


def merge(traces: Mapping[str, list[Event]]) -> list[Event]:
    """Returns the events of all traces, with times counted from the start of the earliest.

    Args:
        traces: Events by the trace's name, which errors quote.

    Raises:
        InvalidArgumentError: A trace does not say when it starts, or two of them use the same rows.
    """
    starts = {name: _start(name, events) for name, events in traces.items()}
    earliest = min(starts.values(), default=0)
    owners: dict[int, str] = {}
    merged: list[Event] = []
    for name, events in traces.items():
        for pid in {event["pid"] for event in events if "pid" in event}:
            if pid in owners:
                raise InvalidArgumentError(
                    f"'{owners[pid]}' and '{name}' both use row {pid}: they must be of different "
                    "ranks, or one of them Horovod's"
                )
            owners[pid] = name
        for event in events:
            if "ts" in event:
                event = {**event, "ts": round(event["ts"] + (starts[name] - earliest), 3)}
            merged.append(event)
    return merged


def _is_event(value: object) -> bool:
    return (
        isinstance(value, dict)
        and "ph" in value
        and isinstance(value.get("ts", 0), int | float)
        and isinstance(value.get("args", {}), dict)
    )


def _start(name: str, events: list[Event]) -> int:
    for event in events:
        if _START in event.get("args", {}):
            return int(event["args"][_START])
    raise InvalidArgumentError(f"'{name}' must say when it starts ({_START}); it does not")
