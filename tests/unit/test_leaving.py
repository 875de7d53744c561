"""The end of a process that has lost a rank, with an exit handler of Horovod's after ours."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

PROGRAM = """
import atexit, sys, time
from hvd_sparse.ranks import lifecycle

class Exchange:
    def close(self):
        pass

lifecycle.FINALIZE_SECONDS = 1.0
atexit.register(lambda: (time.sleep({waits}), print("MPI has ended", flush=True)))
exchange = Exchange()
lifecycle.register(exchange)
lifecycle.{note}()
"""


@pytest.mark.parametrize(
    ("note", "waits", "status", "said"),
    [
        ("note_peer_left", 0, 0, "MPI has ended\n"),  # the others need this rank for that
        ("note_peer_left", 60, 1, ""),  # but not for ever
        ("note_peer_lost", 60, 1, ""),
        ("close_all", 0, 0, "MPI has ended\n"),
    ],
)
def test_a_rank_ends_mpi_with_those_that_left_and_not_with_those_that_died(
    note, waits, status, said
):
    begin = time.monotonic()
    program = PROGRAM.format(note=note, waits=waits)
    job = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (job.returncode, job.stdout, job.stderr) == (status, said, "")
    assert time.monotonic() - begin < 30
