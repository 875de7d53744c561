"""A short soak: the laws hold in concurrent random exchanges, and growth is reported."""

from __future__ import annotations

import json

import pytest

from tests.jobs.launch import mpirun
from tests.jobs.soak import Reading, problems_of

SOAK = ["-m", "tests.jobs.soak"]
# Too few exchanges to warm a process up: only a coarse leak shows.
GROWTH = ["--growth", "0.1"]


@pytest.mark.long  # which tests/parallel shows of one exchange at a time
@pytest.mark.parametrize("ranks", [2, 3])
def test_random_exchanges_keep_the_laws_and_hold_on_to_nothing(ranks, tmp_path):
    result = tmp_path / "soak.json"
    job = mpirun(ranks, [*SOAK, "--exchanges", "120", *GROWTH, "--json", str(result)])
    assert job.status == 0, job.output
    content = json.loads(result.read_text())
    assert content["verified"]
    covered = content["settings"]["covered"]
    assert covered["transport mpi"] > 0
    assert covered["transport tcp"] > 0
    assert covered["refused"] > 0


def test_growth_is_told_by_rank():
    mib = 1 << 20
    steady = [Reading(done, 300 * mib, 90 * mib, 20, 4) for done in (50, 100, 150)]
    assert problems_of([steady, steady], 0.02) == []
    leaking = [*steady[:2], Reading(150, 307 * mib, 90 * mib, 21, 4)]
    assert [problem.split(" grew")[0] for problem in problems_of([steady, leaking], 0.02)] == [
        "memory of rank 1",
        "descriptors of rank 1",
    ]
