"""A file of trace events that Chrome and Perfetto read; valid JSON after every write."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import stat
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_START, _END, _BETWEEN = b"[", b"\n]", ",\n"

_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Track(NamedTuple):
    """A row of the picture.

    Attributes:
        pid: A process to the viewer: a group of rows.
        tid: A thread to the viewer: one row.
    """

    pid: int
    tid: int


class TraceFile:
    """A JSON array of events; every write appends events and closes the array again.

    A process that is killed therefore leaves a file that every JSON reader accepts.

    Args:
        path: Path of the file; its former content is lost.

    Raises:
        OSError: The file cannot be written, or is not a regular file. A symbolic link is refused
            too, so that its target is not emptied.
    """

    def __init__(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            _require_regular(os.lstat(path))
        # The path may name another file by now.
        self._file = os.open(path, _FLAGS, 0o666)
        try:
            _require_regular(os.fstat(self._file))
            os.ftruncate(self._file, 0)
            self._length = len(_START)  # without the closing bracket
            self._write(_START + _END, 0)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, events: Iterable[str]) -> None:
        """Appends events.

        Raises:
            OSError: The events cannot be written; the file still ends where it ended before.
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
        """Closes the file, which is complete already."""
        os.close(self._file)

    def _write(self, text: bytes, offset: int) -> None:
        while text:
            written = os.pwrite(self._file, text, offset)
            text, offset = text[written:], offset + written


def _require_regular(found: os.stat_result) -> None:
    """Raises an OSError that names the kind of file if it is not a regular one."""
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "a special file")
        raise OSError(f"it is {kind}, not a regular file")


@functools.lru_cache(maxsize=4096)
def quoted(text: str) -> str:
    """Returns a string quoted as JSON."""
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
    """Formats one event.

    Args:
        phase: "B" begins a slice and "E" ends it, "X" is a slice with both its ends, "i" is an
            instant, "C" a counter.
        track: The row.
        name: Name of the slice.
        begin: Nanoseconds since the trace's start.
        end: End of an "X", likewise.
        **arguments: Values shown with the event; finite numbers, or strings.
    """
    length = "" if end is None else f', "dur": {(end - begin) / 1000:.3f}'
    scope = ', "s": "t"' if phase == "i" else ""
    return (
        f'{{"ph": "{phase}", "name": {quoted(name)}, "ts": {begin / 1000:.3f}{length}{scope}, '
        f'"pid": {track.pid}, "tid": {track.tid}{_arguments(arguments)}}}'
    )


def metadata(kind: str, track: Track, **arguments: int | str) -> str:
    """Formats an event that names or places a row or a group of rows.

    Args:
        kind: "process_name", "process_sort_index", "thread_name" or "thread_sort_index".
        track: The row; the tid of a group's first row stands for the group.
        **arguments: Its `name` or `sort_index`.
    """
    return (
        f'{{"name": "{kind}", "ph": "M", "pid": {track.pid}, "tid": {track.tid}'
        f"{_arguments(arguments)}}}"
    )
