"""Events of an exchange in the timeline: rows for each bucket, one for steps, one for the host."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hvd_sparse import _core
from hvd_sparse.timeline.timeline import Since, Timeline
from hvd_sparse.timeline.trace_file import Track, event


@dataclass(frozen=True, kw_only=True)
class BucketRow:
    """Rows and labels of a bucket.

    Attributes:
        title: Title that is unique among the buckets of the exchange.
        exchange: Row from the bucket's gradients to its result.
        wait: Row of the caller that waits for the bucket.
        sparsifier: Name of the sparsifier.
        collective: Name of the collective.
    """

    title: str
    exchange: Track
    wait: Track
    sparsifier: str
    collective: str


class StepCost(Protocol):
    """Bytes of one step on this rank."""

    @property
    def bytes_sent(self) -> int:
        """Bytes of sparse blocks sent, headers included."""

    @property
    def bytes_received(self) -> int:
        """Bytes of sparse blocks received, headers included."""

    @property
    def dense_bytes(self) -> int:
        """Bytes of the gradients that the host summed."""


class ExchangeTimeline:
    """The rows of one exchange.

    Args:
        timeline: Timeline of the process.
        name: Name of the exchange, a prefix of the buckets' titles.
    """

    def __init__(self, timeline: Timeline, name: str) -> None:
        self._timeline = timeline
        self._name = name
        self._steps, self._dense = timeline.rows(name, "steps", "dense, by the host")
        self._rows: dict[str, tuple[Track, Track]] = {}  # by title; kept when buckets change
        self._buckets: dict[int, BucketRow] = {}
        self._open: list[str] = []  # open slices of the steps' row
        self._dense_began: float | None = None
        self._dense_count = self._dense_bytes = 0

    def add_bucket(self, number: int, name: str, *, sparsifier: str, collective: str) -> None:
        """Adds rows for a bucket of the exchange."""
        taken = {row.title for row in self._buckets.values()}
        title, count = name, 1
        while title in taken:
            count += 1
            title = f"{name} ({count})"
        if title not in self._rows:
            exchange, wait = self._timeline.rows(
                f"{self._name}, bucket {title}", "exchange", "wait"
            )
            self._rows[title] = (exchange, wait)
        exchange, wait = self._rows[title]
        self._buckets[number] = BucketRow(
            title=title, exchange=exchange, wait=wait, sparsifier=sparsifier, collective=collective
        )

    def clear_buckets(self) -> None:
        """Removes all buckets; a later bucket of the same name gets the same rows."""
        self._buckets.clear()

    def exchanged(self, stats: Sequence[_core.BucketStats], *, waits: bool = False) -> None:
        """Draws the exchanges of a step's buckets, with all their times.

        Args:
            stats: Statistics of buckets that have arrived.
            waits: True to draw the caller's waits for them, too.
        """
        drawn = [(self._buckets[one.number], one) for one in stats]
        self._timeline.record(
            lambda since: itertools.chain.from_iterable(
                bucket_events(row, one, since, waits=waits) for row, one in drawn
            )
        )

    def step_begins(self, step: int) -> None:
        """Opens the step's slice, unless it is open: its first gradient has arrived."""
        if not self._open:
            self._begin(f"STEP {step}", step=step)

    def synchronize_begins(self, step: int) -> None:
        """Marks that everything that can be launched while gradients arrive has been launched."""
        self.step_begins(step)
        self._begin("SYNCHRONIZE")

    def step_ends(self, cost: StepCost) -> None:
        """Closes the step's slices: all gradients have been exchanged.

        Args:
            cost: Bytes of the step.
        """
        while self._open:
            self._put("E", self._steps, self._open.pop())
        self._put(
            "C",
            self._steps,
            "bytes per step",
            sent=cost.bytes_sent,
            received=cost.bytes_received,
            dense=cost.dense_bytes,
        )

    def refused(self, reason: str) -> None:
        """Marks that no rank applies the step."""
        self._put("i", self._steps, "REFUSED", reason=reason)

    def dense_launched(self, size: int) -> None:
        """Notes that a gradient of `size` bytes was handed to the host."""
        if self._dense_began is None:
            self._dense_began = time.perf_counter()
        self._dense_count += 1
        self._dense_bytes += size

    def dense_done(self) -> None:
        """Draws the host's slice: it has returned all gradients of this step."""
        if self._dense_began is None:
            return
        track, began, ended = self._dense, self._dense_began, time.perf_counter()
        operations, size = self._dense_count, self._dense_bytes
        self._timeline.record(
            lambda since: [
                event(
                    "X",
                    track,
                    "DENSE",
                    since(began),
                    since(ended),
                    operations=operations,
                    bytes=size,
                )
            ]
        )
        self._dense_began = None
        self._dense_count = self._dense_bytes = 0

    def _begin(self, name: str, **arguments: int) -> None:
        self._open.append(name)
        self._put("B", self._steps, name, **arguments)

    def _put(self, phase: str, track: Track, name: str, **arguments: int | str) -> None:
        now = time.perf_counter()
        self._timeline.record(lambda since: [event(phase, track, name, since(now), **arguments)])


def bucket_events(
    row: BucketRow, stats: _core.BucketStats, since: Since, *, waits: bool
) -> Iterable[str]:
    """Yields WAIT, if `waits`; READY, SELECT, QUEUE, EXCHANGE; then the rounds and SETTLE.

    These two lie within EXCHANGE: viewers want an enclosing slice before those inside it.
    """
    if waits:
        yield event("X", row.wait, "WAIT", since(stats.wait_begin), since(stats.wait_end))
    track = row.exchange
    yield event("i", track, "READY", since(stats.ready))
    selected, begin, end = map(since, (stats.select_end, stats.exchange_begin, stats.exchange_end))
    numel = max(stats.numel, 1)
    yield event(
        "X",
        track,
        "SELECT",
        since(stats.select_begin),
        selected,
        step=stats.step,
        sparsifier=row.sparsifier,
        numel=stats.numel,
        asked=stats.asked,
        selected=stats.selected,
        density_asked=stats.asked / numel,
        density=stats.selected / numel,
    )
    yield event("X", track, "QUEUE", selected, begin, step=stats.step)
    yield event(
        "X",
        track,
        "EXCHANGE",
        begin,
        end,
        step=stats.step,
        collective=row.collective,
        route=stats.route,
        selected=stats.selected,
        reduced=stats.reduced,
        bytes_sent=stats.bytes_sent,
        bytes_received=stats.bytes_received,
    )
    for one in stats.rounds:
        yield event(
            "X",
            track,
            one.name,
            since(one.begin),
            since(one.end),
            bytes_sent=one.bytes_sent,
            bytes_received=one.bytes_received,
        )
    yield event("X", track, "SETTLE", since(stats.settle_begin), end)
