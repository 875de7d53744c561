"""The timeline: valid JSON at any time, nested slices, and files that are refused."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hvd_sparse import _core
from hvd_sparse.compression.sparsifiers import TopK
from hvd_sparse.errors import InvalidArgumentError, NonFiniteGradientError
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.timeline import timeline
from hvd_sparse.timeline.exchange_timeline import ExchangeTimeline
from hvd_sparse.timeline.timeline import Timeline, from_environment
from hvd_sparse.timeline.trace_file import TraceFile, Track, event, metadata
from tests import laws
from tests.traces import check_trace, read_trace

AWKWARD = 'a "name"\\with\nall\tof {it}, \u00e4\u4e2d \x00'


def test_the_file_is_valid_json_after_every_write(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("something longer that was there before")
    file = TraceFile(str(path))
    assert json.loads(path.read_text()) == []
    file.append([])
    assert json.loads(path.read_text()) == []
    for count in range(1, 4):
        file.append([event("B", Track(1, 2), AWKWARD, 1), event("E", Track(1, 2), AWKWARD, 2)])
        assert len(json.loads(path.read_text())) == 2 * count
    file.close()


def test_events_say_what_they_were_told():
    track = Track(3, 4)
    told = json.loads(event("X", track, AWKWARD, 1_234_567, 2_000_000, density=1e-9, why=AWKWARD))
    assert told == {
        "ph": "X",
        "name": AWKWARD,
        "ts": 1234.567,
        "dur": 765.433,
        "pid": 3,
        "tid": 4,
        "args": {"density": 1e-9, "why": AWKWARD},
    }
    assert json.loads(metadata("process_name", track, name=AWKWARD))["args"] == {"name": AWKWARD}


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    file = TraceFile(str(path))
    file.append([event("i", Track(1, 1), "kept", 0)])
    before = path.read_text()
    pwrite = os.pwrite

    def full(descriptor, text, offset):
        if b"lost" in text:
            pwrite(descriptor, text[:5], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, text, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        file.append([event("i", Track(1, 1), "lost", 0)])
    assert path.read_text() == before

    trace = Timeline(str(tmp_path / "another.json"), rank=0)
    trace.record(lambda since: [event("i", Track(1, 1), "lost", since(time.perf_counter()))])
    with pytest.warns(RuntimeWarning, match="timeline ends here.*No space"):
        trace.close()
    assert json.loads((tmp_path / "another.json").read_text()) == []


def test_a_killed_process_leaves_a_whole_file(tmp_path):
    path = tmp_path / "trace.json"
    program = f"""
import os, time
from pathlib import Path
from hvd_sparse.timeline.exchange_timeline import ExchangeTimeline
from hvd_sparse.timeline.timeline import Timeline
rows = ExchangeTimeline(Timeline({str(path)!r}, rank=0), "optimizer")
rows.synchronize_begins(0)
while "SYNCHRONIZE" not in Path({str(path)!r}).read_text():
    time.sleep(0.01)
os.kill(os.getpid(), {int(signal.SIGKILL)})
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    events = json.loads(path.read_text())
    check_trace(events, died=True)
    assert events[-1]["name"] == "SYNCHRONIZE"  # its activity when it died


# Python 3.12 and newer warn of the fork: pytest-timeout has a thread in this process.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_writes_nothing(tmp_path):
    trace = Timeline(str(tmp_path / "trace.json"), rank=0)
    trace.rows("one", "row")
    child = os.fork()
    if child == 0:
        trace.close()
        os._exit(0 if not trace.closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    trace.close()
    check_trace(json.loads((tmp_path / "trace.json").read_text()))


def traced_ranks(tmp_path, size, steps, buckets=3, collective="gtopk"):
    """Runs exchanges on thread ranks, each with its own trace; returns each rank's BucketStats."""
    world = _core.LoopbackWorld(size)

    def one(rank):
        trace = Timeline(str(tmp_path / f"{rank}.json"), rank=rank)
        exchange = Exchange.over_loopback(world, rank, timeline=ExchangeTimeline(trace, "test"))
        sizes = [1000 + b for b in range(buckets)]
        steps_of = ArraySteps(
            exchange,
            *(
                exchange.add_bucket(
                    f"top_k-{collective}",
                    numels=[numel],
                    segments=[numel],
                    max_ks=[50],
                    sparsifier=TopK(),
                    collective=collective,
                )
                for numel in sizes
            ),
        )
        residual, states = np.zeros(sum(sizes), np.float32), np.zeros((buckets, 4), np.float32)
        kept = []
        for step in range(steps):
            exchange.timeline.step_begins(step)
            gradients = [laws.integer_gradient(numel, rank=rank, step=step) for numel in sizes]
            steps_of.begin(residual=Buffer.of(residual), states=Buffer.of(states))
            for op, gradient in enumerate(gradients):
                steps_of.launch(op, [Buffer.of(gradient)])
            exchange.timeline.synchronize_begins(step)
            stats = steps_of.wait()
            steps_of.commit()
            exchange.timeline.step_ends(FakeCost())
            kept.append(stats)
        exchange.close()
        trace.close()
        return kept

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(one, range(size)))


class FakeStats:
    step = numel = asked = selected = reduced = bytes_sent = bytes_received = 0
    ready = select_begin = select_end = exchange_begin = settle_begin = exchange_end = 0.0
    route, rounds = "calls", ()

    def __init__(self, number):
        self.number = number


class FakeCost:
    bytes_sent, bytes_received, dense_bytes = 7, 8, 9


@pytest.mark.parametrize(("size", "rounds"), [(1, 0), (3, 2), (4, 2)])
def test_every_bucket_shows_its_way_in_every_step(tmp_path, size, rounds):
    steps = 4
    stats = traced_ranks(tmp_path, size, steps)
    for rank in range(size):
        trace = read_trace(tmp_path / f"{rank}.json")
        assert all(s.process.startswith(f"rank {rank}: test") for s in trace.slices)
        for b in range(3):
            process = "bucket top_k-gtopk" + (f" ({b + 1})" if b else "")
            select, queued, exchange, settle, wait = (
                trace.of(name, process)
                for name in ("SELECT", "QUEUE", "EXCHANGE", "SETTLE", "WAIT")
            )
            for step in range(steps):
                told = stats[rank][step][b]
                chain = [select[step], queued[step], exchange[step]]
                assert [s.args["step"] for s in chain] == 3 * [step]
                assert all(s.parents == () and s.thread == "exchange" for s in chain)
                assert [s.end for s in chain[:2]] == [s.begin for s in chain[1:]]
                assert settle[step].parents == ("EXCHANGE",)
                assert settle[step].end == exchange[step].end <= wait[step].end
                assert wait[step].thread == "wait"
                inner = [
                    s
                    for s in trace.slices
                    if s.name.startswith("gtopk") and exchange[step].begin <= s.begin
                    if s.end <= settle[step].begin and s.process.endswith(process)
                ]
                assert all(s.parents == ("EXCHANGE",) for s in inner)
                assert len(inner) <= 3
                assert size != 4 or len(inner) == rounds
                assert sum(s.args["bytes_sent"] for s in inner) == told.bytes_sent
                assert sum(s.args["bytes_received"] for s in inner) == told.bytes_received
                assert select[step].args["asked"] == told.asked
                assert select[step].args["density"] == told.density_reached
                assert exchange[step].args["reduced"] == told.reduced
                assert exchange[step].args["bytes_sent"] == told.bytes_sent
                assert (select[step].end - select[step].begin) / 1e9 == pytest.approx(
                    told.select_seconds, abs=2e-9
                )
            assert len(select) == len(wait) == len(settle) == steps
        every = sorted(trace.of("EXCHANGE"), key=lambda s: s.begin)
        assert all(a.end <= b.begin for a, b in itertools.pairwise(every))
        assert [s.parents for s in trace.of("SYNCHRONIZE")] == [
            (f"STEP {i}",) for i in range(steps)
        ]
        assert [c["args"] for c in trace.counts] == steps * [{"sent": 7, "received": 8, "dense": 9}]
        assert [m["name"] for m in trace.moments] == 3 * steps * ["READY"]


def test_a_refused_step_says_why(tmp_path):
    trace = Timeline(str(tmp_path / "trace.json"), rank=0)
    rows = ExchangeTimeline(trace, "test")
    exchange = Exchange.over_loopback(_core.LoopbackWorld(1), 0, timeline=rows)
    me = laws.Rank(exchange, 0, [100], 0.1, "top_k", "allgather")
    gradient = laws.integer_gradient(100, rank=0, step=0)
    gradient[3] = float("nan")
    me.start(gradient)
    with pytest.raises(NonFiniteGradientError):
        me.finish()
    trace.close()
    _, refused = read_trace(tmp_path / "trace.json").moments
    assert refused["name"] == "REFUSED"
    assert "holds NaN or Inf" in refused["args"]["reason"]


def test_replaced_buckets_of_the_same_name_keep_their_rows(tmp_path):
    trace = Timeline(str(tmp_path / "trace.json"), rank=0)
    rows = ExchangeTimeline(trace, "test")
    for number in range(6):
        if number % 2 == 0:
            rows.clear_buckets()
        rows.add_bucket(number, "same", sparsifier="top_k", collective="gtopk")
        rows.exchanged([FakeStats(number)])
    trace.close()
    events = json.loads((tmp_path / "trace.json").read_text())
    pids = [e["pid"] for e in events if e["name"] == "EXCHANGE"]
    assert pids[0] != pids[1]
    assert pids == 3 * pids[:2]


def test_an_exchange_without_a_timeline_records_nothing(monkeypatch):
    monkeypatch.setattr(Timeline, "record", lambda *_: pytest.fail("recorded"))
    exchange = Exchange.over_loopback(_core.LoopbackWorld(1), 0)
    assert exchange.timeline is None
    laws.Rank(exchange, 0, [100], 0.1, "top_k", "allgather").run(2)


def asked_for(path, **more):
    return {timeline.VARIABLE: str(path), **more}


def test_rank_0_alone_writes_unless_the_name_says_the_rank(tmp_path):
    assert from_environment(rank=0, environment={}) is None
    one = asked_for(tmp_path / "one.json")
    assert from_environment(rank=1, environment=one) is None
    first = from_environment(rank=0, environment=one)
    assert from_environment(rank=0, environment=one) is first
    first.close()
    again = from_environment(rank=0, environment=one)
    assert again is not first
    again.close()
    third = from_environment(rank=3, environment=asked_for(tmp_path / "{rank}.json"))
    third.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["3.json", "one.json"]


@pytest.mark.parametrize("name", ["", "nowhere/trace.json", "/dev/null"])
def test_a_file_that_cannot_be_written_is_refused(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(InvalidArgumentError, match=r"HVD_SPARSE_TIMELINE must name a file that ra"):
        from_environment(rank=0, environment=asked_for(path))


def make_fifo(path):
    os.mkfifo(path)


def make_link(path):
    (path.parent / "target").write_text("precious")
    path.symlink_to("target")


def make_link_to_nothing(path):
    path.symlink_to("nowhere")


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


@pytest.mark.timeout(20)  # opening a FIFO would wait for a reader
@pytest.mark.parametrize("name", ["trace.json", "trace-{rank}.json"])
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (make_fifo, "a FIFO"),
        (make_link, "a symbolic link"),
        (make_link_to_nothing, "a symbolic link"),
        (make_socket, "a socket"),
        (Path.mkdir, "a directory"),
    ],
)
def test_what_is_no_regular_file_is_refused_by_name_before_it_is_opened(tmp_path, make, kind, name):
    path = tmp_path / name.format(rank=0)
    make(path)
    there = set(tmp_path.iterdir())
    with pytest.raises(InvalidArgumentError) as caught:
        from_environment(rank=0, environment=asked_for(tmp_path / name))
    assert str(caught.value) == (
        f"HVD_SPARSE_TIMELINE must name a file that rank 0 can write, got {str(path)!r}: "
        f"it is {kind}, not a regular file"
    )
    assert set(tmp_path.iterdir()) == there
    assert make is not make_link or path.read_text() == "precious"


def test_a_link_that_appears_after_the_look_is_not_followed(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    make_link(path)
    monkeypatch.setattr(os, "lstat", lambda _: (tmp_path / "target").stat())
    with pytest.raises(InvalidArgumentError, match="HVD_SPARSE_TIMELINE must name a file"):
        from_environment(rank=0, environment=asked_for(path))
    assert path.read_text() == "precious"


def test_a_link_among_the_folders_is_followed(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    from_environment(rank=0, environment=asked_for(tmp_path / "link" / "trace.json")).close()
    assert json.loads((tmp_path / "folder" / "trace.json").read_text()) == []


@pytest.mark.timeout(20)
def test_horovods_trace_is_not_read_from_a_fifo(tmp_path):
    theirs = tmp_path / "horovod.json"
    os.mkfifo(theirs)
    named = asked_for(tmp_path / "trace.json", HOROVOD_TIMELINE=str(theirs))
    trace = from_environment(rank=0, environment=named)
    trace.rows("a", "row")
    trace.close()
    check_trace(json.loads((tmp_path / "trace.json").read_text()))


def test_horovods_own_file_is_refused(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("[")
    theirs = f"{tmp_path}/../{tmp_path.name}/trace.json"
    with pytest.raises(InvalidArgumentError, match="another file than HOROVOD_TIMELINE"):
        from_environment(rank=0, environment=asked_for(path, HOROVOD_TIMELINE=theirs))
    assert path.read_text() == "["


def test_times_count_from_the_start_of_horovods_trace(tmp_path):
    theirs, ours = tmp_path / "horovod.json", tmp_path / "trace.json"
    trace = from_environment(rank=0, environment=asked_for(ours, HOROVOD_TIMELINE=str(theirs)))
    start = time.time_ns() // 1000 - 5_000_000
    first = {"name": "process_name", "ph": "M", "pid": 0}
    first["args"] = {"start_time_since_epoch_in_micros": start}
    theirs.write_text("[\n" + json.dumps(first) + "]")  # after ours was opened
    track = trace.rows("a", "row")[0]
    moment = time.perf_counter()
    trace.record(lambda since: [event("X", track, "now", since(moment), since(moment))])
    trace.close()
    read = read_trace(ours)
    assert read.start == pytest.approx(start, abs=100)
    assert read.of("now")[0].begin == pytest.approx(5e9, abs=3e9)


@pytest.mark.parametrize(
    "row",
    [
        [("X", 0, 10), ("X", 5, 10)],
        [("B", 0, None), ("X", 5, 10), ("E", 8, None)],
        [("E", 8, None)],
        [("B", 8, None)],
    ],
)
def test_slices_that_viewers_would_drop_are_found(row):
    track = Track(1, 1)
    lines = [
        metadata("trace_start", track, start_time_since_epoch_in_micros=1),
        metadata("process_name", track, name="p"),
        metadata("thread_name", track, name="t"),
        *(
            event(p, track, "s", at * 1000, (at + length) * 1000 if length else None)
            for p, at, length in row
        ),
    ]
    with pytest.raises(AssertionError):
        check_trace([json.loads(line) for line in lines])
