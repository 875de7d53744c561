"""Only one job at a time saves to a folder, and a job that died does not block others."""

from __future__ import annotations

import errno
import fcntl
import logging
import subprocess
import sys

import pytest

from hvd_sparse.state.checkpoint_folder import making
from hvd_sparse.state.folder_lock import saving
from tests.checkpoints import held_by_another_process

COUNT = """
import sys
from pathlib import Path
from hvd_sparse.state.folder_lock import saving
folder, done = Path(sys.argv[1]), 0
while done < 50:
    try:
        with saving(folder):
            count = int(folder.read_text())
            folder.write_text(str(count + 1))
        done += 1
    except OSError as error:
        assert "another job is saving" in str(error), error
"""


def test_no_two_processes_hold_the_lock(tmp_path):
    counter = tmp_path / "count"
    counter.write_text("0")
    command = [sys.executable, "-c", COUNT, str(counter)]
    jobs = [subprocess.Popen(command) for _ in range(4)]
    assert [job.wait(timeout=60) for job in jobs] == [0] * 4
    assert counter.read_text() == "200"
    assert [path.name for path in tmp_path.iterdir()] == ["count"]


def test_the_holder_is_named_and_its_work_is_left_alone(tmp_path):
    folder = tmp_path / "last"
    (tmp_path / "last.making-1").mkdir()
    with held_by_another_process(folder) as other:
        told = (
            rf"another job is saving .*\(host \S+, process {other.pid}, since \d.* UTC\): .*last'"
        )
        with pytest.raises(OSError, match=told), making(folder, "2"):
            pass
        assert (tmp_path / "last.making-1").exists()
    with making(folder, "2"):  # after the other job was killed
        assert not (tmp_path / "last.making-1").exists()
    assert list(tmp_path.iterdir()) == []


def test_where_there_are_no_locks_others_work_is_left_alone(tmp_path, monkeypatch, caplog):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    (tmp_path / "last[1].making-1").mkdir()
    with caplog.at_level(logging.WARNING, "hvd_sparse"), making(tmp_path / "last[1]", "2"):
        assert "has no file locks (No locks available)" in caplog.text
        assert (tmp_path / "last[1].making-1").exists()
        assert (tmp_path / "last[1].making-2").exists()
    monkeypatch.undo()
    with saving(tmp_path / "last[1]") as alone:
        assert alone
    assert [path.name for path in tmp_path.iterdir()] == ["last[1].making-1"]
