"""A file of trace events, as Chrome and Perfetto read it; valid JSON after every write."""

from __future__ import annotations

import functools
import json
import os
import stat
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_START, _END, _BETWEEN = b"[", b"\n]", ",\n"


class Track(NamedTuple):
    """A line of the picture.

    Attributes:
        pid: What viewers call a process: a group of lines.
        tid: What they call a thread: one line.
    """

    pid: int
    tid: int


class TraceFile:
    """A JSON array of events that grows at its end, and is closed again by the same write.

    So a process that is killed leaves a file that every reader of JSON takes.

    Args:
        path: Of the file; what it held is lost.

    Raises:
        OSError: It cannot be written, or is no regular file.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise OSError("it is no regular file")
            os.ftruncate(self._file, 0)
            self._length = len(_START)  # without the closing bracket
            self._write(_START + _END, 0)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, events: Iterable[str]) -> None:
        """Writes events at the end.

        Raises:
            OSError: They cannot be written; the file ends where it ended before.
        """
        lines = _BETWEEN.join(events).encode()
        if not lines:
            return
        before = b"\n" if self._length == len(_START) else _BETWEEN.encode()
        try:
            self._write(before + lines + _END, self._length)
        except OSError:
            os.ftruncate(self._file, self._length)
            self._write(_END, self._length)
            raise
        self._length += len(before) + len(lines)

    def close(self) -> None:
        """Lets go of the file, which is complete already."""
        os.close(self._file)

    def _write(self, text: bytes, offset: int) -> None:
        while text:
            written = os.pwrite(self._file, text, offset)
            text, offset = text[written:], offset + written


@functools.lru_cache(maxsize=4096)
def quoted(text: str) -> str:
    """A string in JSON."""
    return json.dumps(text)


def _arguments(values: Mapping[str, int | float | str]) -> str:
    if not values:
        return ""
    parts = [
        f'"{key}": {quoted(value) if isinstance(value, str) else value}'
        for key, value in values.items()
    ]
    return f', "args": {{{", ".join(parts)}}}'


def event(
    phase: str,
    track: Track,
    name: str,
    begin: int,
    end: int | None = None,
    /,
    **arguments: int | float | str,
) -> str:
    """One event.

    Args:
        phase: "B" begins a slice and "E" ends it, "X" is a slice with both its ends, "i" is a
            moment, "C" counts.
        track: Where it is drawn.
        name: Of the slice.
        begin: Nanoseconds since the trace's start.
        end: The same, of an "X".
        **arguments: Shown with it; finite numbers, or strings.
    """
    length = "" if end is None else f', "dur": {(end - begin) / 1000:.3f}'
    scope = ', "s": "t"' if phase == "i" else ""
    return (
        f'{{"ph": "{phase}", "name": {quoted(name)}, "ts": {begin / 1000:.3f}{length}{scope}, '
        f'"pid": {track.pid}, "tid": {track.tid}{_arguments(arguments)}}}'
    )


def metadata(kind: str, track: Track, **arguments: int | str) -> str:
    """What a track or a group of them is called, or where it stands.

    Args:
        kind: "process_name", "process_sort_index", "thread_name" or "thread_sort_index".
        track: Of which the first track's tid stands for the group.
        **arguments: Its `name` or `sort_index`.
    """
    return (
        f'{{"name": "{kind}", "ph": "M", "pid": {track.pid}, "tid": {track.tid}'
        f"{_arguments(arguments)}}}"
    )
