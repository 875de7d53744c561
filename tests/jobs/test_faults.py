"""Real jobs in which one rank fails: all ranks end with an error that names the cause."""

from __future__ import annotations

import pytest

from tests.jobs.faults import FAULTS, FAULTY, LAST_STEP, break_job
from tests.jobs.launch import Job, free_port, mpirun, mpirun_without_help
from tests.marks import long


def failed(job: Job, *ranks: int) -> bool:
    """Returns true if all these ranks ended by themselves, with status 1."""
    return all(f"rank {rank} ended with status 1" in job.output for rank in ranks)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "kill in backward", "kill in wait"])
def test_mpirun_ends_the_job_of_a_killed_rank(fault):
    job = mpirun(2, [FAULTY, fault])
    assert job.status != 0, job.output
    assert LAST_STEP not in job.output  # the third step may have been sent completely before


# One fault for each verdict on a rank: it never came, it died, it left. Other tests cover the other
# faults in part. Between steps a rank is killed amid local steps, and
# in wait while a step is in flight: see below, where a slow rank is waited for, too. While ranks
# connect, it is rank 0 that is killed here, and tests/csrc/lifeline_test.cc ends another one. Ranks
# that leave, skip a step, or have a bad gradient or other options are in tests/parallel. In
# tests/csrc, out_of_memory_test.cc runs out of memory, and tcp_process_test.cc stops a rank.
QUICK = ("kill rank 0 while connecting", "kill in exchange", "exception")


@pytest.mark.parametrize(
    "fault",
    [fault if fault.name in QUICK else long(fault) for fault in FAULTS if not fault.slow],
    ids=lambda fault: fault.name,
)
def test_a_fault_of_one_rank_ends_all_in_time_or_is_survived(fault):
    outcome = break_job(fault)
    assert not outcome.problems, f"{outcome.problems}\n{outcome.output}"


# In its third step the rank fails in the second interval of 2 local steps, while a fragment is in
# flight if meetings stream, or at the meeting that ends one of 3.
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("kill", ["--local-steps=2"]),
        ("kill", ["--local-steps=2", "--streams"]),
        pytest.param("exception", ["--local-steps=2"], marks=pytest.mark.long),
        pytest.param("kill in exchange", ["--local-steps=3"], marks=pytest.mark.long),
    ],
)
def test_a_rank_that_fails_amid_local_steps_ends_all_in_time(name, options):
    fault = next(one for one in FAULTS if one.name == name)
    outcome = break_job(fault, *options)
    assert not outcome.problems, f"{outcome.problems}\n{outcome.output}"


# The others' step() has returned before the rank dies, or while it does.
@pytest.mark.parametrize("name", ["kill in wait", long("kill in exchange"), long("exception")])
def test_a_rank_that_fails_while_a_step_is_in_flight_ends_all_in_time(name):
    fault = next(one for one in FAULTS if one.name == name)
    outcome = break_job(fault, "--forward")
    assert not outcome.problems, f"{outcome.problems}\n{outcome.output}"


# Over MPI, a waiting Horovod occupies whole cores, so the regular test uses Gloo.
@pytest.mark.parametrize("transport", [long("mpi"), "gloo"])
def test_a_slow_rank_is_named_and_waited_for(transport):
    options = [f"--gloo=127.0.0.1:{free_port()}"] if transport == "gloo" else []
    job = mpirun(3, [FAULTY, "slow", *options], HVD_SPARSE_STALL_SECONDS="1")
    assert job.status == 0, job.output
    assert LAST_STEP in job.output
    assert "has waited 1 s for rank 2 in bucket '" in job.output


@pytest.mark.long
def test_an_exception_on_one_rank_ends_the_job():
    job = mpirun(3, [FAULTY, "exception"])
    assert job.status != 0, job.output
    assert "a bug in the user's code" in job.output
    assert "step 2 done" not in job.output


@pytest.mark.parametrize(
    ("fault", "ours", "theirs"),
    [
        ("model", "(48, 256)", "(64, 256)"),
        pytest.param("density", "density=0.5", "density=0.01", marks=pytest.mark.long),
    ],
)
def test_ranks_that_differ_are_told_at_construction(fault, ours, theirs):
    job = mpirun_without_help(2, [FAULTY, fault])
    assert failed(job, 0, 1), job.output
    assert job.output.count("InvalidArgumentError: ") == 2, job.output
    assert "rank 1" in job.output
    assert ours in job.output
    assert theirs in job.output
