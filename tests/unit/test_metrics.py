"""Metrics: numbers by name, and a summary line at the end."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hvd_sparse.stats.metrics import metrics_of, sink_of, summary_of
from hvd_sparse.stats.quality import Quality
from hvd_sparse.stats.step_stats import Stats, StepStats, TotalStats

BUCKET = SimpleNamespace(
    bucket="fc", step=3, numel=1000, asked=10, selected=12, reduced=30, bytes_sent=96,
    bytes_received=128, select_seconds=0.25, exchange_seconds=2.0, averaged=0, left_out=[],
)  # fmt: skip
STEP = StepStats(
    step=3, buckets=(BUCKET, BUCKET), dense_bytes=40, wait_seconds=1.0, transport="tcp"
)
DENSE = StepStats(step=4, dense_bytes=8000, wait_seconds=3.0, transport="tcp")


def test_a_step_becomes_numbers_by_name():
    assert metrics_of(STEP) == {
        "sparse": 1.0,
        "density_asked": 0.01,
        "density_reached": 0.012,
        "bytes_sent": 192.0,
        "bytes_received": 256.0,
        "dense_bytes": 40.0,
        "select_seconds": 0.5,
        "exchange_seconds": 4.0,
        "wait_seconds": 1.0,
        "overlap": 0.75,
    }


@pytest.mark.parametrize("error", [0.25, None])
def test_a_step_whose_quality_was_measured_tells_the_worst_layer(error):
    quality = Quality(compression_error=error, deltas={"fc": 0.5, "conv": 0.75})
    found = metrics_of(replace(STEP, quality=quality))
    assert found["assumption_delta"] == 0.75
    assert found.get("compression_error") == error


def test_a_rank_that_is_left_out_shows_in_metrics_and_summary():
    averaged = SimpleNamespace(
        **vars(BUCKET) | {"selected": 1000, "averaged": 200, "left_out": [50, 200, 100]}
    )
    step = replace(STEP, buckets=(averaged, averaged))
    found = metrics_of(step)
    assert [found[f"left_out_rank_{rank}"] for rank in range(3)] == [0.25, 1.0, 0.5]
    total = TotalStats().plus(step).plus(step)
    assert (total.averaged, total.left_out) == (800, (200, 800, 400))
    line = summary_of(Stats(last=step, total=total), dense_bytes=8000, size=3)
    assert line.endswith("; rank 1 was left out most often, of 100% of the averages")


def test_ranks_that_come_or_go_are_counted_anew():
    three = SimpleNamespace(**vars(BUCKET) | {"averaged": 10, "left_out": [1, 2, 3]})
    four = SimpleNamespace(**vars(BUCKET) | {"averaged": 8, "left_out": [0, 0, 4, 8]})
    total = TotalStats().plus(replace(STEP, buckets=(three,)))
    total = total.plus(replace(STEP, buckets=(four,)))
    assert (total.averaged, total.left_out) == (8, (0, 0, 4, 8))


def test_a_dense_step_is_no_sparse_one():
    found = metrics_of(DENSE)
    assert found["sparse"] == 0
    assert found["dense_bytes"] == 8000
    assert "overlap" not in found


def test_a_writer_gets_tags_and_a_function_gets_all():
    class Writer:
        def __init__(self):
            self.seen = []

        def add_scalar(self, tag, value, step):
            self.seen.append((tag, value, step))

    writer, told = Writer(), []
    sink_of(writer)({"a": 1.0, "b": 2.0}, 7)
    sink_of(lambda metrics, step: told.append((metrics, step)))({"a": 1.0}, 8)
    assert writer.seen == [("hvd_sparse/a", 1.0, 7), ("hvd_sparse/b", 2.0, 7)]
    assert told == [({"a": 1.0}, 8)]


def test_a_run_ends_with_a_line():
    assert summary_of(Stats(), dense_bytes=8000, size=4) == "no step was exchanged"
    total = TotalStats().plus(DENSE).plus(STEP)
    line = summary_of(Stats(total=total), dense_bytes=8000, size=4)
    # (192 + 1.5 (40 + 8000)) / 2 bytes against 1.5 * 8000.
    assert line == (
        "2 steps, 1 of them sparse: 6.1 kB sent per rank and step, 1.96 times fewer than dense; "
        "250 ms selecting, 2e+03 ms exchanging, 2e+03 ms waiting"
    )
    assert math.isclose(total.wait_seconds, 4.0)
    sparse = summary_of(Stats(last=STEP, total=total), dense_bytes=8000, size=4)
    assert sparse == f"{line}; an entry waits 83.3 steps on average"  # 12 of 1000 are taken


def test_a_waiting_time_that_is_not_known_is_left_out():
    step = replace(STEP, wait_seconds=math.nan)
    stats = Stats(last=step, total=TotalStats().plus(step))
    line = summary_of(stats, dense_bytes=8000, size=4)
    assert "4e+03 ms exchanging; an entry waits" in line


def test_a_run_that_sends_all_entries_says_what_they_take_otherwise():
    everything = replace(STEP, buckets=(SimpleNamespace(**vars(BUCKET) | {"selected": 1000}),) * 2)
    stats = Stats(last=everything, total=TotalStats().plus(everything))
    line = summary_of(stats, dense_bytes=8000, size=4)
    assert line == (
        "1 steps, 1 of them summed by hvd_sparse: 0.3 kB sent per rank and step (uncompressed: "
        "12.0 kB); 500 ms coding, 4e+03 ms exchanging, 1e+03 ms waiting"
    )


@pytest.mark.parametrize("size", [1, 2])
def test_nothing_sent_is_no_division_by_zero(size):
    stats = Stats(total=TotalStats(steps=1))
    assert "inf" in summary_of(stats, dense_bytes=10, size=size) or size == 1
