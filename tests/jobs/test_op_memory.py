"""TensorFlow's ops out of memory: the step fails on all ranks, and the process continues."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.jobs.launch import ROOT, run

pytest.importorskip("tensorflow")

SOURCE = ROOT / "tests" / "csrc" / "preloaded" / "failing_allocations_of.cc"


@pytest.mark.long  # tests/csrc/step_driver_memory_test.cc shows it of what the ops call
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_whichever_allocation_of_an_op_fails_the_step_ends_and_nothing_is_lost(tmp_path):
    library = tmp_path / "failing_allocations_of.so"
    compiler = ["c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    subprocess.run([*compiler, "-ldl"], check=True)
    job = run(
        [sys.executable, str(ROOT / "tests" / "jobs" / "ops_without_memory.py")],
        LD_PRELOAD=str(library),
    )
    assert job.status == 0, job.output
    (failed,) = re.findall(r"(\d+) allocations have failed", job.output)
    assert int(failed) >= 5
