"""Real jobs that go wrong on one rank: all ranks end with an error that says what happened."""

from __future__ import annotations

import pytest

from tests.jobs.faults import FAULTS, FAULTY, break_job
from tests.jobs.launch import Job, mpirun, mpirun_without_help
from tests.jobs.marks import long


def failed(job: Job, *ranks: int) -> bool:
    """Whether all these ranks ended by themselves, with status 1."""
    return all(f"rank {rank} ended with status 1" in job.output for rank in ranks)


def test_a_job_without_fault_ends_well():
    job = mpirun(3, [FAULTY, "none"], timeout=60)
    assert job.status == 0, job.output
    assert "step 3 done" in job.output


@pytest.mark.parametrize("fault", ["kill", "kill in backward", "kill in wait"])
def test_mpirun_ends_the_job_of_a_killed_rank(fault):
    job = mpirun(3, [FAULTY, fault], timeout=60)
    assert job.status != 0, job.output
    assert "step 2 done" not in job.output


# What becomes of these, other tests show in part: below, and with all ranks in tests/parallel.
SHOWN_ELSEWHERE = (
    "kill in backward",
    "exception",
    "nan",
    "skip and stay",
    "model",
    "density",
    "slow",
)


@pytest.mark.parametrize(
    "fault",
    [
        long(fault) if fault.name in SHOWN_ELSEWHERE else fault
        for fault in FAULTS
        if not fault.patient
    ],
    ids=lambda fault: fault.name,
)
def test_a_fault_of_one_rank_ends_all_in_time_or_is_survived(fault):
    outcome = break_job(fault)
    assert not outcome.problems, f"{outcome.problems}\n{outcome.output}"


def test_an_exception_on_one_rank_ends_the_job():
    job = mpirun(3, [FAULTY, "exception"], timeout=60)
    assert job.status != 0, job.output
    assert "a bug in the user's code" in job.output
    assert "step 2 done" not in job.output


def test_a_slow_rank_is_named_and_waited_for():
    job = mpirun(3, [FAULTY, "slow"], timeout=60, HVD_SPARSE_STALL_SECONDS="2")
    assert job.status == 0, job.output
    assert "step 3 done" in job.output
    warnings = [line for line in job.output.splitlines() if "has waited 2 s for rank" in line]
    assert warnings, job.output
    assert any("for rank 2 in bucket '" in line for line in warnings), job.output


@pytest.mark.parametrize(
    ("fault", "ours", "theirs"),
    [("model", "(48, 256)", "(64, 256)"), ("density", "density=0.5", "density=0.01")],
)
def test_ranks_that_differ_are_told_at_construction(fault, ours, theirs):
    job = mpirun_without_help(3, [FAULTY, fault], timeout=60)
    assert failed(job, 0, 1, 2), job.output
    assert job.output.count("InvalidArgumentError: ") == 3, job.output
    assert "rank 2" in job.output
    assert ours in job.output
    assert theirs in job.output
