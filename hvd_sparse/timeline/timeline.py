"""The trace of this process, for Perfetto beside Horovod's: HVD_SPARSE_TIMELINE=FILE.

docs/timeline.md describes the events.
"""

from __future__ import annotations

import os
import queue
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.ranks import lifecycle
from hvd_sparse.timeline.trace_file import TraceFile, Track, metadata

VARIABLE = "HVD_SPARSE_TIMELINE"
HOROVOD_VARIABLE = "HOROVOD_TIMELINE"
# Placeholder for this process's rank in the file's name.
RANK = "{rank}"
# Seconds between two writes: the events that a killed process may lose.
WRITE_SECONDS = 0.1
# Horovod numbers its rows from 0; ours come after those, in a range of their own for each rank.
ROWS_PER_RANK = 100_000

# Converts a moment of `time.perf_counter` to nanoseconds since the trace's start.
Since = Callable[[float], int]
# Makes events; called on the writing thread.
Recipe = Callable[[Since], Iterable[str]]


class Timeline:
    """The trace of this process. Recording is cheap: a thread of its own formats and writes.

    Times are those of `time.perf_counter`, which on Linux is the clock of Horovod's trace and of
    the core. Their zero is that of Horovod's trace if there is one, else the construction of this
    object.

    Args:
        path: Path of the file.
        rank: Rank in the whole job; chooses the numbers of rows.
        horovod: Path of Horovod's trace, if this process writes one.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(self, path: str, *, rank: int, horovod: str | None = None) -> None:
        self.path = path
        self._file = TraceFile(path)
        self._rank = rank
        self._horovod = horovod
        self._next_row = ROWS_PER_RANK * (rank + 1)
        self._zero = round(time.perf_counter() * 1e9)
        self._started = False
        self._recipes: queue.SimpleQueue[Recipe] = queue.SimpleQueue()
        self._rows = threading.Lock()
        self._process = os.getpid()
        self._broken = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write, name="hvd_sparse timeline", daemon=True)
        self._thread.start()
        lifecycle.register(self)

    @property
    def closed(self) -> bool:
        """True if the timeline takes no more events."""
        return self._closing.is_set()

    def rows(self, title: str, *names: str) -> list[Track]:
        """Adds rows under one title, in this order."""
        with self._rows:
            pid = self._next_row
            self._next_row += len(names)
        tracks = [Track(pid, pid + index) for index in range(len(names))]
        lines = [
            metadata("process_name", tracks[0], name=f"rank {self._rank}: {title}"),
            metadata("process_sort_index", tracks[0], sort_index=pid),
        ]
        for index, (track, name) in enumerate(zip(tracks, names, strict=True)):
            lines.append(metadata("thread_name", track, name=name))
            lines.append(metadata("thread_sort_index", track, sort_index=index))
        self.record(lambda _: lines)
        return tracks

    def record(self, recipe: Recipe) -> None:
        """Queues the events that `recipe` will make, soon and on another thread."""
        if not self._closing.is_set() and not self._broken:
            self._recipes.put(recipe)

    def fail(self, reason: str) -> None:
        """Does nothing: the events before a failure are those that one wants to see."""

    def close(self) -> None:
        """Writes the remaining events, and takes no more."""
        if self._closing.is_set() or os.getpid() != self._process:
            return
        self._closing.set()
        self._thread.join()
        self._drain()
        self._file.close()

    def _write(self) -> None:
        while not self._closing.wait(WRITE_SECONDS):
            self._drain()

    def _drain(self) -> None:
        lines: list[str] = []
        while not self._recipes.empty():
            recipe = self._recipes.get()
            if not self._started:
                lines.append(self._start())
            lines.extend(recipe(self._since))
        if self._broken:
            return
        try:
            self._file.append(lines)
        except OSError as error:
            self._broken = True
            warnings.warn(
                f"{VARIABLE}: the timeline ends here, {self.path!r} cannot be written: {error}",
                RuntimeWarning,
                stacklevel=1,
            )

    def _start(self) -> str:
        """Returns the event that tells the trace's start, which Horovod's file may decide.

        Called as late as possible: Horovod's file states its start in its first event.
        """
        self._started = True
        now, clock = _two_clocks()
        start = None if self._horovod is None else _start_of(self._horovod)
        if start is not None:
            self._zero = clock - (now - 1000 * start)
        first = Track(ROWS_PER_RANK * (self._rank + 1), ROWS_PER_RANK * (self._rank + 1))
        # Horovod states the start of its own trace under the same name.
        epoch = (now - (clock - self._zero)) // 1000
        return metadata("trace_start", first, start_time_since_epoch_in_micros=epoch)

    def _since(self, moment: float) -> int:
        return round(moment * 1e9) - self._zero


def _two_clocks() -> tuple[int, int]:
    """Returns nanoseconds since the epoch and of `time.perf_counter`, at one moment."""
    best = None
    for _ in range(9):  # the shortest try was not interrupted
        before, now, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        if best is None or after - before < best[0]:
            best = after - before, now, (before + after) // 2
    assert best is not None
    return best[1], best[2]


def _start_of(horovod: str) -> int | None:
    """Returns the start of Horovod's trace, in microseconds since the epoch; None if not stated."""
    try:
        if not Path(horovod).is_file():  # reading a FIFO would block, and steal others' data
            return None
        with open(horovod, encoding="utf-8", errors="replace") as file:
            head = file.read(4096)
    except OSError:
        return None
    found = re.search(r'"start_time_since_epoch_in_micros":\s*(\d+)', head)
    return int(found.group(1)) if found else None


_timelines: dict[str, Timeline] = {}


def from_environment(*, rank: int, environment: Mapping[str, str] = os.environ) -> Timeline | None:
    """Returns this process's trace, if HVD_SPARSE_TIMELINE asks for one; always the same object.

    Args:
        rank: Rank in the whole job; rank 0 alone writes, unless the name contains "{rank}".
        environment: Environment variables of the process.

    Raises:
        InvalidArgumentError: The file cannot be written, is a symbolic link or otherwise not a
            regular file, or is the one that Horovod writes to.
    """
    name = environment.get(VARIABLE, "")
    if not name or (rank != 0 and RANK not in name):
        return None
    path = str(Path(name.replace(RANK, str(rank))).absolute())
    known = _timelines.get(path)
    if known is not None and not known.closed:
        return known
    horovod = environment.get(HOROVOD_VARIABLE, "") if rank == 0 else ""
    if horovod and os.path.realpath(horovod) == os.path.realpath(path):
        raise InvalidArgumentError(
            f"{VARIABLE} must name another file than {HOROVOD_VARIABLE}, got {name!r} for both"
        )
    try:
        _timelines[path] = Timeline(path, rank=rank, horovod=horovod or None)
    except OSError as error:
        why = error.strerror or str(error)
        raise InvalidArgumentError(
            f"{VARIABLE} must name a file that rank {rank} can write, got {path!r}: {why}"
        ) from None
    return _timelines[path]
