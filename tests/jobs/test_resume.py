"""An interrupted job ends like one that was not interrupted, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.jobs.launch import mpirun

PROGRAM = "tests/jobs/resumed_ranks.py"
INTERRUPTED, LAST = 24, 28  # a plan is found by step 18


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3])
def test_tensorflow_resumes_bit_for_bit(ranks, tmp_path):
    parts = {"whole": (0, LAST), "first": (0, INTERRUPTED), "rest": (INTERRUPTED, LAST)}
    for name, steps in parts.items():
        job = mpirun(
            ranks,
            [PROGRAM, str(tmp_path), name, *map(str, steps)],
            HOROVOD_FUSION_THRESHOLD="0",  # dense sums in one order; see tests/rank_guard.py
        )
        assert job.status == 0, job.output
    for rank in range(ranks):
        whole, first, rest = (np.load(tmp_path / f"{name}-{rank}.npz") for name in parts)
        assert set(whole) == set(rest)
        for key in whole:
            assert whole[key].tobytes() == rest[key].tobytes(), key
        assert any(whole[key].tobytes() != first[key].tobytes() for key in whole)
