"""Both frameworks give bitwise equal averages and residuals for the same gradients."""

from __future__ import annotations

import numpy as np
import pytest

from tests.jobs.launch import mpirun

PROGRAM = "tests/jobs/framework_ranks.py"


# The law of tests/framework_laws/same_bits.py compares each framework with the core.
@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_both_frameworks_give_the_same_bits(ranks, tmp_path):
    for framework in ("torch", "tensorflow"):
        job = mpirun(ranks, [PROGRAM, framework, str(tmp_path)])
        assert job.status == 0, job.output
    for rank in range(ranks):
        torch, tensorflow = (
            np.load(tmp_path / f"{framework}-{rank}.npz") for framework in ("torch", "tensorflow")
        )
        assert set(torch) == set(tensorflow)
        assert any(np.any(torch[key]) for key in torch if "residual" in key)
        for key in torch:
            ours, theirs = torch[key].view(np.int32), tensorflow[key].view(np.int32)
            assert np.array_equal(ours, theirs), key
