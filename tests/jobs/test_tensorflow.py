"""Jobs of TensorFlow: exchanges overlap with backward, and no rank is left hanging."""

from __future__ import annotations

import json

import pytest

from tests.jobs.launch import mpirun, mpirun_without_help
from tests.jobs.marks import long

PROGRAM = "tests/jobs/tensorflow_ranks.py"
SECONDS = 60.0


@pytest.mark.parametrize("how", ["none", "reversed"])
def test_buckets_are_exchanged_while_other_gradients_are_computed(how, tmp_path):
    """Also where variables come in an order that says nothing of that of their gradients."""
    trace = tmp_path / "trace.json"
    job = mpirun(2, [PROGRAM, how], timeout=SECONDS, HVD_SPARSE_TIMELINE=str(trace))
    assert job.status == 0, job.output
    events = json.loads(trace.read_text())
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    overlaps = []
    for step in range(3, 6):  # the order is learned after step 1, and holds from step 2 on
        begun = {"SELECT": {}, "EXCHANGE": {}}
        for event in events:
            if event["name"] in begun and event["args"]["step"] == step:
                bucket = names[event["pid"]].rsplit(maxsplit=1)[-1]
                begun[event["name"]][bucket] = event["ts"]
        assert sorted(begun["EXCHANGE"]) == [f"w{i}" for i in range(5)]
        assert min(begun["SELECT"], key=begun["SELECT"].get) != "w0"
        overlaps.append(min(begun["EXCHANGE"].values()) < begun["SELECT"]["w0"])
    assert any(overlaps)


@pytest.mark.parametrize("how", ["raise", long("kill"), long("operation")])
def test_every_rank_ends_when_one_fails(how):
    job = mpirun_without_help(3, [PROGRAM, how], timeout=SECONDS)
    for rank in range(2):
        assert f"rank {rank}: AbortedError" in job.output, job.output
        assert f"rank {rank} ended with status 0" not in job.output
    if how == "raise":
        assert (
            "rank 2 ended the exchange: unhandled ValueError: a mistake of the user" in job.output
        )
    if how == "kill":
        assert "rank 2 of 3 has died" in job.output
    if how == "operation":
        assert "rank 2: InvalidArgumentError" in job.output
