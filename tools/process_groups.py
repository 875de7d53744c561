"""Ends commands together with all processes that they have started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

GRACE_SECONDS = 10  # between SIGTERM and SIGKILL: mpirun ends its ranks on SIGTERM


def end_group(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Ends a process that was started with start_new_session=True, and all that it started."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # any that outlived the first
    process.wait()
