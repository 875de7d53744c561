"""A job that ends while a step is in flight applies it on all ranks."""

from __future__ import annotations

import pytest

from tests.jobs.launch import mpirun


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("shutdown", "has the same weights"),
        pytest.param("exit", "leaves", marks=pytest.mark.long),
    ],
)
def test_a_job_may_end_while_a_step_is_in_flight(way, says):
    job = mpirun(2, ["tests/jobs/forward_ranks.py", way])
    assert job.status == 0, job.output
    assert all(f"rank {rank} {says}" in job.output for rank in range(2)), job.output
