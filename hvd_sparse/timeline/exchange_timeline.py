"""What an exchange writes to the timeline: a row per bucket, one for steps, one for the rest."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from hvd_sparse import _core
from hvd_sparse.timeline.timeline import Since, Timeline
from hvd_sparse.timeline.trace_file import Track, event


@dataclass(frozen=True, kw_only=True)
class BucketRow:
    """Where the slices of a bucket are drawn, and what they say of it.

    Attributes:
        title: Tells it from all other buckets of the exchange.
        exchange: The row from its gradients to the result.
        wait: The row of whoever waits for it.
        sparsifier: Its name.
        collective: Its name.
    """

    title: str
    exchange: Track
    wait: Track
    sparsifier: str
    collective: str


class StepCost(Protocol):
    """Bytes of a step, on this rank."""

    @property
    def bytes_sent(self) -> int:
        """Of sparse blocks, headers included."""

    @property
    def bytes_received(self) -> int:
        """Of sparse blocks, headers included."""

    @property
    def dense_bytes(self) -> int:
        """Of the gradients that Horovod exchanged."""


class ExchangeTimeline:
    """The rows of one exchange.

    Args:
        timeline: Of the process.
        name: Of the exchange; before the names of the buckets.
    """

    def __init__(self, timeline: Timeline, name: str) -> None:
        self._timeline = timeline
        self._name = name
        self._steps, self._dense = timeline.rows(name, "steps", "dense, by Horovod")
        self._rows: dict[str, tuple[Track, Track]] = {}  # by title; outlive a change of buckets
        self._buckets: dict[int, BucketRow] = {}
        self._open: list[str] = []  # slices of the steps' row
        self._dense_began: float | None = None
        self._dense_count = self._dense_bytes = 0

    def add_bucket(self, number: int, name: str, *, sparsifier: str, collective: str) -> None:
        """A bucket of the exchange."""
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
        """Others are added next; one of the same name has the same rows."""
        self._buckets.clear()

    def ready(self, number: int) -> None:
        """All gradients of the bucket have arrived."""
        self._put("i", self._buckets[number].exchange, "READY")

    def wait_begins(self, number: int) -> None:
        """Somebody waits for the bucket."""
        self._put("B", self._buckets[number].wait, "WAIT")

    def wait_ends(self, number: int) -> None:
        """The bucket has arrived, or failed."""
        self._put("E", self._buckets[number].wait, "WAIT")

    def exchanged(self, number: int, stats: _core.BucketStats) -> None:
        """What became of the bucket, with all its times."""
        row = self._buckets[number]
        self._timeline.record(lambda since: bucket_events(row, stats, since))

    def step_begins(self, step: int) -> None:
        """The first gradient of a step has arrived; or nobody has said so yet."""
        if not self._open:
            self._begin(f"STEP {step}", step=step)

    def synchronize_begins(self, step: int) -> None:
        """All that can be launched while gradients arrive, was."""
        self.step_begins(step)
        self._begin("SYNCHRONIZE")

    def step_ends(self, cost: StepCost) -> None:
        """All gradients have been exchanged.

        Args:
            cost: The bytes of the step.
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
        """No rank applies the step."""
        self._put("i", self._steps, "REFUSED", reason=reason)

    def dense_launched(self, size: int) -> None:
        """Horovod has been given a gradient of `size` bytes."""
        if self._dense_began is None:
            self._dense_began = time.perf_counter()
        self._dense_count += 1
        self._dense_bytes += size

    def dense_done(self) -> None:
        """Horovod has returned all it was given in this step."""
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


def bucket_events(row: BucketRow, stats: _core.BucketStats, since: Since) -> Iterable[str]:
    """SELECT, QUEUE and EXCHANGE of a bucket; within the last the collective's rounds and SETTLE.

    What surrounds another slice comes first, as viewers want it.
    """
    track = row.exchange
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
