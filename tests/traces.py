"""Reads traces by the rules of their viewers: events that these drop or misplace are errors."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Slice:
    """A stretch of time on a row; times in nanoseconds."""

    process: str
    thread: str
    name: str
    begin: int
    end: int
    parents: tuple[str, ...]
    args: dict


@dataclass(frozen=True)
class Trace:
    """The contents of a trace as a viewer shows them."""

    slices: list[Slice]
    moments: list[dict]
    counts: list[dict]
    start: int  # microseconds since the epoch

    def of(self, name: str, process: str = "") -> list[Slice]:
        return [s for s in self.slices if s.name == name and s.process.endswith(process)]


def read_trace(path: Path | str) -> Trace:
    return check_trace(json.loads(Path(path).read_text()))


def check_trace(events: list[dict], *, died: bool = False) -> Trace:
    """Checks that slices of a row nest, begins and ends pair up, and rows have names.

    If `died`, the process was killed, so slices may be open.
    """
    names = {
        (e["name"], e["pid"], e["tid"]): e["args"]["name"]
        for e in events
        if e["ph"] == "M" and "name" in e["args"]
    }
    start = next(
        e["args"]["start_time_since_epoch_in_micros"]
        for e in events
        if "start_time_since_epoch_in_micros" in e.get("args", {})
    )
    rows = defaultdict(list)
    for event in sorted((e for e in events if e["ph"] in "BEX"), key=lambda e: _ns(e["ts"])):
        rows[event["pid"], event["tid"]].append(event)
    slices = []
    for (pid, tid), row in rows.items():
        process, thread = names["process_name", pid, pid], names["thread_name", pid, tid]
        slices += _nested(row, process, thread, died)
    assert {e["ph"] for e in events} <= set("MBEXiC")
    return Trace(
        slices=slices,
        moments=[e for e in events if e["ph"] == "i"],
        counts=[e for e in events if e["ph"] == "C"],
        start=start,
    )


def _nested(row: list[dict], process: str, thread: str, died: bool) -> list[Slice]:
    slices, stack = [], []  # (event, end), where the end of a "B" is not known yet

    def put(event: dict, end: int) -> None:
        parents = tuple(parent["name"] for parent, _ in stack)
        args, begin = event.get("args", {}), _ns(event["ts"])
        slices.append(Slice(process, thread, event["name"], begin, end, parents, args))

    for event in row:
        now = _ns(event["ts"])
        while stack and stack[-1][1] is not None and stack[-1][1] <= now:
            stack.pop()
        if event["ph"] == "E":
            assert stack, f"{process}, {thread}: an end without a begin: {event}"
            begun, end = stack.pop()
            assert end is None, f"{process}, {thread}: {begun} outlives {event}"
            assert begun["name"] == event["name"]
            put(begun, now)
        elif event["ph"] == "B":
            stack.append((event, None))
        else:
            end = now + _ns(event["dur"])
            assert event["dur"] >= 0, event
            for parent, until in stack:
                assert until is None or end <= until, f"{process}, {thread}: {event} in {parent}"
            put(event, end)
            stack.append((event, end))
    assert died or all(end is not None for _, end in stack), f"{process}, {thread}: open: {stack}"
    return slices


def _ns(micros: float) -> int:
    return round(micros * 1000)
