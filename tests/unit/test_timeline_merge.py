"""Joined traces: one clock, and rows that each belong to one file."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from hvd_sparse.cli import app
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.timeline.merge import merge, read


def trace(pid, start, *times):
    first = {"ph": "M", "name": "start", "pid": pid}
    first["args"] = {"start_time_since_epoch_in_micros": start}
    return [first, *({"ph": "i", "name": "x", "pid": pid, "ts": ts} for ts in times)]


def test_times_count_from_the_earliest_start():
    merged = merge({"a": trace(0, 5_000, 1, 2.125), "b": trace(7, 2_000, 1)})
    assert [(e["pid"], e["ts"]) for e in merged if "ts" in e] == [(0, 3001), (0, 3002.125), (7, 1)]


def test_nanoseconds_survive():
    start = 1_795_269_223_322_917
    merged = merge({"a": trace(0, start + 1_000_000, 0.001, 8025356.789), "b": trace(7, start)})
    assert [e["ts"] for e in merged if "ts" in e] == [1_000_000.001, 9025356.789]


def test_nothing_is_changed_in_what_is_given():
    given = trace(0, 5_000, 1)
    merge({"a": given, "b": trace(7, 2_000, 1)})
    assert given == trace(0, 5_000, 1)


def test_two_files_of_the_same_rows_are_refused():
    with pytest.raises(InvalidArgumentError, match="'a' and 'b' both use row 3"):
        merge({"a": trace(3, 1), "b": trace(3, 1)})


def test_a_trace_without_a_start_is_refused():
    with pytest.raises(InvalidArgumentError, match="'b' must say when it starts"):
        merge({"a": trace(3, 1), "b": trace(4, 1)[1:]})


@pytest.mark.parametrize("end", ["]", "", ",", ",\n", "\n]\n"])
def test_the_closing_bracket_may_be_missing(tmp_path, end):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace(0, 1, 2))[:-1] + end)
    assert read(path) == trace(0, 1, 2)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[3]", b'[{"ts": 4}]', b'[{"ph": "B", "na', b'[{"ph": "B", "ts": "x"}]',
     b'[{"ph": "M", "args": [1]}]', b"\x89PNG"],
)  # fmt: skip
def test_what_is_no_trace_is_refused(tmp_path, content):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match="must hold a JSON array of trace events"):
        read(path)


def test_the_command_writes_one_file_or_says_why_not(tmp_path):
    for name, pid in [("a", 0), ("b", 5)]:
        (tmp_path / name).write_text(json.dumps(trace(pid, 10 + pid, 1)))
    files = [str(tmp_path / name) for name in ("a", "b")]
    output = tmp_path / "all.json"
    done = CliRunner().invoke(app, ["merge-timelines", *files, "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert "4 events" in done.output
    assert read(output) == merge({"a": trace(0, 10, 1), "b": trace(5, 15, 1)})

    (tmp_path / "b").write_text("no JSON")
    done = CliRunner().invoke(app, ["merge-timelines", *files, "-o", str(tmp_path / "none.json")])
    assert done.exit_code == 1
    assert "must hold a JSON array" in done.output
    assert not (tmp_path / "none.json").exists()


def test_files_that_cannot_be_used_are_named(tmp_path):
    (tmp_path / "a").write_text(json.dumps(trace(0, 10, 1)))
    for given, output, message in [
        ("a", "nowhere/all", "--output must name a file that can be written, got"),
        ("missing", "all", f"cannot read a trace from {tmp_path / 'missing'}"),
    ]:
        arguments = ["merge-timelines", str(tmp_path / given), "-o", str(tmp_path / output)]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 1
        assert message in done.output
