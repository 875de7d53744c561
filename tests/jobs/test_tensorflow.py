"""Jobs of TensorFlow: exchanges overlap with backward, and no rank hangs."""

from __future__ import annotations

import json
import re

import pytest

from tests.jobs.launch import free_port, mpirun, mpirun_without_help
from tests.marks import long

PROGRAM = "tests/jobs/tensorflow_ranks.py"
ORDERS = ("none", "reversed")


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """The trace of a job that trains with variables in one order, and then in the other."""
    trace = tmp_path_factory.mktemp("overlap") / "trace.json"
    job = mpirun(2, [PROGRAM, *ORDERS], HVD_SPARSE_TIMELINE=str(trace))
    assert job.status == 0, job.output
    return json.loads(trace.read_text())


@pytest.mark.parametrize("how", ORDERS)
def test_buckets_are_exchanged_while_other_gradients_are_computed(how, events):
    """Covers variables in an order unrelated to that of their gradients, too."""
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    buckets = {pid: name.rsplit(maxsplit=1)[-1] for pid, name in names.items() if how in name}
    first = f"{how}_w0"
    overlaps = []
    # By then the order is learned from 16 steps. In a single step, the last gradient may come
    # first, if another process delays a thread of the executor.
    for step in range(18, 24):
        begun = {"SELECT": {}, "EXCHANGE": {}}
        for event in events:
            if event["name"] in begun and event["pid"] in buckets and event["args"]["step"] == step:
                begun[event["name"]][buckets[event["pid"]]] = event["ts"]
        assert sorted(begun["EXCHANGE"]) == [f"{how}_w{i}" for i in range(5)]
        assert min(begun["SELECT"], key=begun["SELECT"].get) != first
        overlaps.append(min(begun["EXCHANGE"].values()) < begun["SELECT"][first])
    assert any(overlaps)


@pytest.mark.parametrize("how", [long("raise"), "kill", long("operation")])
def test_every_rank_ends_when_one_fails(how):
    job = mpirun_without_help(2, [PROGRAM, how])
    assert "rank 0: AbortedError" in job.output, job.output
    assert "rank 0 ended with status 0" not in job.output
    said = {
        "raise": "rank 1 ended the exchange: unhandled ValueError: a mistake of the user",
        "kill": "rank 1 of 2 has died",
        "operation": "rank 1: InvalidArgumentError",
    }
    assert said[how] in job.output, job.output


@pytest.mark.long  # test_transports.py kills a rank over Gloo, and the test above one of TensorFlow
def test_the_death_of_a_rank_is_told_where_an_operation_of_horovod_fails_first():
    """Over Gloo, Horovod notices it; TensorFlow raises the error of a single operation."""
    options = [f"--gloo=127.0.0.1:{free_port()}", "kill_while_others_compute"]
    job = mpirun_without_help(3, [PROGRAM, *options])
    for rank in (0, 1):
        assert f"rank {rank} ended with status 0" not in job.output
        assert re.search(rf"rank {rank}: (Unknown|Aborted)Error", job.output), job.output
    said = re.findall(r"rank 2 of 3 has died \(.*\) in exchange '", job.output)
    assert len(said) >= 2, job.output
