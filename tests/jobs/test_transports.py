"""Jobs whose ranks are connected by TCP: over Gloo, and under mpirun on request."""

from __future__ import annotations

import pytest

from tests.jobs.faults import FAULTS, FAULTY, LAST_STEP, break_job
from tests.jobs.launch import Job, free_port, horovodrun, mpirun
from tests.marks import long

# The time in which surviving ranks must end.
SECONDS_AFTER_A_DEATH = 60.0
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no"]


def passed(job: Job) -> bool:
    return job.status == 0 and " passed" in job.output and " failed" not in job.output


def test_gloo():
    program = [
        *PYTEST,
        "tests/parallel/test_transport.py",
        "tests/parallel/test_torch_optimizer.py",
        "tests/parallel/test_torch_tuning.py::test_the_real_planner_decides_the_same_everywhere",
    ]
    job = horovodrun(2, program, options=("--gloo",))
    assert passed(job), job.output


# The test above trains over Gloo, and the laws hold over TCP: tests/parallel/test_transport.py.
@pytest.mark.long
@pytest.mark.parametrize("laws", ["not bits_of_the_core", "bits_of_the_core"])
def test_laws_over_gloo(laws):
    program = [
        *PYTEST,
        "tests/parallel/test_torch_laws.py",
        f"-k=not over_several_steps and not any_number_type and not every_collective and {laws}",
    ]
    job = horovodrun(2, program, options=("--gloo",))
    assert passed(job), job.output


@pytest.mark.long
def test_gloo_with_an_odd_number_of_ranks():
    program = [
        *PYTEST,
        "tests/parallel/test_swap.py",
        "tests/parallel/test_torch_process_sets.py",
        "tests/parallel/test_torch_misuse.py",
        "tests/parallel/test_laws.py",
        "-k=0.05-engine or test_swap or process_sets or misuse",
    ]
    job = horovodrun(3, program, options=("--gloo",))
    assert passed(job), job.output


@pytest.mark.long  # each of tests/parallel/test_transport.py takes TCP under mpirun, too
def test_tcp_under_mpirun():
    program = [
        *PYTEST,
        "tests/parallel/test_transport.py",
        "tests/parallel/test_swap.py",
        "tests/parallel/test_laws.py",
        "-k=not pieces and (0.05-engine or not over_several_steps)",
    ]
    job = mpirun(3, program, HVD_SPARSE_TRANSPORT="tcp")
    assert passed(job), job.output


def test_mpi_without_threads_takes_tcp():
    program = [*PYTEST, "tests/parallel/test_transport.py"]
    job = mpirun(2, program, HOROVOD_MPI_THREADS_DISABLE="1")
    assert passed(job), job.output


def test_horovod_over_gloo_may_be_shut_down_and_initialised_again():
    places = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    job = mpirun(2, ["tests/jobs/twice.py", *places])
    assert job.status == 0, job.output
    assert job.output.count("life 2 over tcp is done") == 2, job.output


# Over Gloo, Horovod notices that a rank has died, and fails before its messages are missed. Stopped
# ranks are tested over MPI, and test_tensorflow.py kills a rank over Gloo while others compute.
OVER_GLOO = (
    "kill in exchange",
    long("kill while others compute"),
    long("late"),
    long("stop for 3 s"),
)


@pytest.mark.parametrize("name", OVER_GLOO)
def test_a_fault_of_one_rank_over_gloo_ends_all_in_time_or_is_survived(name):
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    outcome = break_job(fault, f"--gloo=127.0.0.1:{free_port()}")
    assert not outcome.problems, f"{outcome.problems}\n{outcome.output}"


@pytest.mark.long  # mpirun ends such a job in test_faults.py, and without help it ends above
def test_horovodrun_ends_the_job_of_a_killed_rank_over_gloo():
    program = [FAULTY, "kill in wait"]
    job = horovodrun(2, program, options=("--gloo",))
    assert job.status != 0, job.output
    assert job.seconds < SECONDS_AFTER_A_DEATH
    assert "step 1 done" in job.output
    assert LAST_STEP not in job.output  # the third step may have been sent completely before
