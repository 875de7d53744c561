"""Starts an example under horovodrun and returns its record."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def run(example: str, arguments: Sequence[str], *, ranks: int) -> dict[str, Any]:
    """Runs an example of this folder and returns its --json output.

    Raises:
        SystemExit: The run failed; its output was printed before.
    """
    with tempfile.TemporaryDirectory() as folder:
        account = Path(folder) / "account.json"
        command = [
            horovodrun(), "-np", str(ranks),
            sys.executable, str(FOLDER / example), *arguments, "--json", str(account),
        ]  # fmt: skip
        done = subprocess.run(
            command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode != 0 or not account.exists():
            print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
            sys.exit(f"failed with status {done.returncode}: {' '.join(command)}")
        result: dict[str, Any] = json.loads(account.read_text())
        return result


def horovodrun() -> str:
    """Returns the launcher of this interpreter, or else the one on PATH."""
    own = Path(sys.executable).with_name("horovodrun")
    found = str(own) if own.exists() else shutil.which("horovodrun")
    if found is None:
        sys.exit("horovodrun is not on PATH: is Horovod installed?")
    return found


def environment() -> dict[str, str]:
    """Returns the environment for several ranks on one machine; the user's variables prevail."""
    env = {
        "OMP_NUM_THREADS": "1",  # the ranks share the cores ...
        "OMPI_MCA_mpi_yield_when_idle": "1",  # ... and yield them while they wait
        "TF_CPP_MIN_LOG_LEVEL": "3",  # horovodrun imports TensorFlow if it is installed
        **os.environ,
    }
    if os.geteuid() == 0:  # mpirun refuses to run as root otherwise
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # mpirun should be this interpreter's, too.
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
    return env
