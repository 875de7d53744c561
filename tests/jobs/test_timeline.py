"""The timeline of real jobs: together with Horovod's, and of jobs that are killed."""

from __future__ import annotations

import json

import pytest

from hvd_sparse.timeline.merge import merge_files
from tests.jobs.faults import LAST_STEP
from tests.jobs.launch import mpirun
from tests.traces import check_trace, read_trace

JOB = "tests/jobs/faulty.py"


def test_a_trace_lies_beside_horovods(tmp_path):
    theirs = tmp_path / "horovod.json"
    job = mpirun(
        2,
        [JOB, "none"],
        HOROVOD_TIMELINE=str(theirs),
        HVD_SPARSE_TIMELINE=str(tmp_path / "ours-{rank}.json"),
    )
    assert job.status == 0, job.output
    events = json.loads(theirs.read_text())
    start = events[0]["args"]["start_time_since_epoch_in_micros"]
    trace = read_trace(tmp_path / "ours-0.json")
    assert trace.start == pytest.approx(start, abs=2)

    biases = {e["pid"] for e in events if ".bias" in str(e.get("args", {}).get("name"))}
    assert len(biases) == 2
    dense, slack = trace.of("DENSE"), 20_000_000  # comparing clocks may be interrupted
    for bias in biases:
        began = [
            e["ts"] * 1000 for e in events if e["pid"] == bias and e.get("name") == "ALLREDUCE"
        ]
        for at, ours in zip(began, dense, strict=True):
            assert ours.begin - slack <= at <= ours.end + slack

    merged = tmp_path / "all.json"
    merge_files([theirs, tmp_path / "ours-0.json", tmp_path / "ours-1.json"], merged)
    ours = [e for e in json.loads(merged.read_text()) if e["pid"] >= 100_000]
    both = check_trace(ours)
    for step in range(4):
        one, other = both.of(f"STEP {step}")
        assert {one.process, other.process} == {f"rank {rank}: optimizer 1" for rank in (0, 1)}
        # Each step gathers until the other rank is there, so the steps overlap on a common clock.
        assert max(one.begin, other.begin) < min(one.end, other.end)


@pytest.mark.long  # tests/unit/test_timeline.py kills a process, and a job ends in test_faults.py
def test_a_killed_job_leaves_whole_files(tmp_path):
    name = str(tmp_path / "{rank}.json")
    job = mpirun(2, [JOB, "kill in wait"], HVD_SPARSE_TIMELINE=name)
    assert job.status != 0, job.output
    assert LAST_STEP not in job.output  # the third step may have been sent completely before
    survivor = check_trace(json.loads((tmp_path / "0.json").read_text()), died=True)
    assert survivor.slices or survivor.moments
    json.loads((tmp_path / "1.json").read_text())


@pytest.mark.long
def test_a_bad_file_ends_the_job_before_anything_is_exchanged(tmp_path):
    name = str(tmp_path / "nowhere" / "trace.json")
    job = mpirun(2, [JOB, "none"], HVD_SPARSE_TIMELINE=name)
    assert job.status != 0
    assert "HVD_SPARSE_TIMELINE must name a file that rank 0 can write" in job.output
    assert "step 0 done" not in job.output
