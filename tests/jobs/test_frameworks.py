"""Both frameworks give bitwise equal averages and residuals for the same gradients."""

from __future__ import annotations

import numpy as np
import pytest

from tests.jobs.launch import mpirun

PROGRAM = "tests/jobs/framework_ranks.py"


def check_both(ranks, folder, *options):
    """Checks that all ranks of both frameworks get the same bits, for the program's options."""
    for framework in ("torch", "tensorflow"):
        job = mpirun(ranks, [PROGRAM, framework, str(folder), *options], timeout=120)
        assert job.status == 0, job.output
    for rank in range(ranks):
        torch, tensorflow = (
            np.load(folder / f"{framework}-{rank}.npz") for framework in ("torch", "tensorflow")
        )
        assert set(torch) == set(tensorflow)
        assert any(np.any(torch[key]) for key in torch if "residual" in key)
        for key in torch:
            ours, theirs = torch[key].view(np.int32), tensorflow[key].view(np.int32)
            assert np.array_equal(ours, theirs), key


def test_both_frameworks_give_the_same_bits(tmp_path):
    check_both(3, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_both_frameworks_give_the_same_bits_with_every_pair(ranks, tmp_path):
    check_both(ranks, tmp_path, "--every-pair")
