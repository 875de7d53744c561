"""The benchmark of learning trains, keeps what it saw, goes on from there and reports."""

from __future__ import annotations

import json
import sys

import pytest
from virtual_cluster import why_not

from tests.jobs.launch import mpirun, run

pytestmark = pytest.mark.long  # it looks at benchmarks alone

PROGRAM = [sys.executable, "benchmarks/time_to_loss.py"]
TITLES = ("dense", "prototype: own Adam, g^2/P, warm-up 50", "average every 10")


def learn(folder, *options):
    """Trains the transformer for 100 steps by the methods of TITLES, with one learning rate."""
    methods = [f"--method={title}" for title in TITLES]
    program = [*PROGRAM, "learn", "--task=transformer", "--steps=100", "--rates=1", *methods]
    return run([*program, f"--folder={folder}", *options])


@pytest.mark.long
def test_learn_and_report(tmp_path):
    job = learn(tmp_path)
    assert job.status == 0, job.output
    files = sorted(tmp_path.glob("*.json"))
    assert len(files) == 3
    for file in files:
        told = json.loads(file.read_text())["told"]
        assert told["same"] is True
        assert [block["step"] for block in told["blocks"]] == [50, 100]
        first, last = (block["held_out"] for block in told["blocks"])
        assert last < first < 4.85  # log 128
    written = {file: file.stat().st_mtime_ns for file in files}
    again = learn(tmp_path)
    assert again.status == 0, again.output
    assert {file: file.stat().st_mtime_ns for file in files} == written  # nothing is made twice

    pictures = tmp_path / "pictures"
    pictures.mkdir()
    options = ["--steps=100", f"--folder={tmp_path}", f"--plots={pictures}"]
    job = run([*PROGRAM, "report", *options])
    assert job.status == 0, job.output
    for title in TITLES:
        assert f"| {title} | " in job.output
    assert {file.name for file in pictures.iterdir()} == {"learned_transformer.png"}


@pytest.mark.long
def test_a_prototype_that_sends_everything_learns_as_dense(tmp_path):
    """Prototypes that send all entries take dense's steps: their parts are right.

    Horovod adds up in an order that depends on timing, so that losses differ a little.
    """
    ends = {}
    for task, method in (
        ("transformer", "Dense"),
        ("transformer", "ErrorFeedback(density=1.0)"),
        ("transformer", "EF21(density=1.0)"),
        ("transformer", "MicroAdam(density=1.0, window=20)"),
        ("CNN", "Dense"),
        ("CNN", 'ErrorFeedback(density=1.0, front="momentum")'),
    ):
        file = tmp_path / "account.json"
        options = {
            "task": task, "method": method, "rate": 0.003, "steps": 20, "every": 20,
            "rendezvous": "127.0.0.1:1", "json": file,
        }  # fmt: skip
        program = ["benchmarks/learning_rank.py", *(f"--{k}={v}" for k, v in options.items())]
        job = mpirun(2, program)
        assert job.status == 0, job.output
        told = json.loads(file.read_text())
        assert told["same"] is True
        ends[task, method] = told["blocks"][-1]["held_out"]
    for (task, method), end in ends.items():
        assert end == pytest.approx(ends[task, "Dense"], abs=2e-2), method


@pytest.mark.long
def test_a_method_that_does_not_exist_is_refused(tmp_path):
    job = run([*PROGRAM, "learn", "--method=magic", f"--folder={tmp_path}"])
    assert job.status == 2
    assert "method must be one of dense" in " ".join(job.output.split())


@pytest.mark.long
@pytest.mark.skipif(why_not() is not None, reason=f"no virtual cluster: {why_not()}")
def test_race(tmp_path):
    options = ["--task=transformer", "--goal=25", "--network=0", f"--folder={tmp_path}"]
    methods = ["--method=LAGS", "--method=average every 10", "--method=DDP, PowerSGD 1"]
    job = run([*PROGRAM, "race", *options, *methods])
    assert job.status == 0, job.output
    assert len(list(tmp_path.glob("*.json"))) == 6  # with dense twice, and computing alone
    job = run([*PROGRAM, "report", "--goal=25", f"--folder={tmp_path}"])
    assert job.status == 0, job.output
    assert "| DDP, PowerSGD 1 |" in job.output
    assert "| computing alone |" in job.output
