"""Starts real jobs: several ranks under mpirun or horovodrun, each with a time limit."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
# Limit of a job: below that of a test, and far above what a job takes on a busy machine. What must
# end in time has a limit of its own.
JOB_SECONDS = 240
SITE = ROOT / "tests" / "jobs" / "site"  # imported by Python before the program
# A command for sh that runs another command and prints its exit status.
TELL_STATUS = '"$@"; echo "rank $OMPI_COMM_WORLD_RANK ended with status $?"'


@dataclass(frozen=True)
class Job:
    """The result of a job that has ended."""

    status: int
    output: str
    seconds: float


def environment(**extra: str) -> dict[str, str]:
    """Returns the environment of a job: our tools first, one thread per rank, quiet frameworks."""
    env = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{SITE}{os.pathsep}{ROOT}",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    if os.geteuid() == 0:
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return env | extra


def run(command: list[str], *, timeout: float = JOB_SECONDS, **extra: str) -> Job:
    """Runs a command to its end.

    Kills it if it exceeds `timeout` seconds, and fails with where its ranks were.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(**extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        # mpirun passes SIGUSR1 on: see site/sitecustomize.py. Ranks may have sessions of their own,
        # which torchrun and mpirun end if they can.
        for number, seconds in ((signal.SIGUSR1, 2), (signal.SIGTERM, 10), (signal.SIGKILL, None)):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=seconds)
                break
        what = f"{' '.join(command[-3:])} was still running after {timeout} s"
        raise AssertionError(f"{what}\n{command}\n{output}") from None
    return Job(process.returncode, output, time.monotonic() - start)


def ranks_alone(ranks: int, program: list[str]) -> list[tuple[int, str]]:
    """Runs ranks of torch.distributed, of which no launcher ends those that others leave behind.

    Returns:
        The status and the output of each rank.
    """
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, *program],
            env=environment(
                RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=JOB_SECONDS)[0] for process in processes]
    return [(one.returncode, text) for one, text in zip(processes, outputs, strict=True)]


def mpirun(ranks: int, program: list[str], *, inside: Sequence[str] = (), **extra: str) -> Job:
    """Runs `mpirun -np RANKS python PROGRAM...`, optionally within the command `inside`."""
    command = [*inside, *_mpirun(ranks), sys.executable, *program]
    return run(command, **extra)


def mpirun_without_help(
    ranks: int, program: list[str], *, inside: Sequence[str] = (), **extra: str
) -> Job:
    """Like `mpirun`, but mpirun does not end the survivors of a rank that failed.

    mpirun then always exits with status 0, so each rank's own status is in the output: "rank 1
    ended with status 0".
    """
    mpirun = [*inside, *_mpirun(ranks), "--enable-recovery"]
    command = [*mpirun, "sh", "-c", TELL_STATUS, "sh", sys.executable]
    return run([*command, *program], **extra)


def _mpirun(ranks: int) -> list[str]:
    return ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none"]


def horovodrun(
    ranks: int, program: list[str], *, options: tuple[str, ...] = (), **extra: str
) -> Job:
    """Runs `horovodrun -np RANKS python PROGRAM...`."""
    command = ["horovodrun", "-np", str(ranks), *options]
    return run([*command, sys.executable, *program], **extra)


def free_port() -> int:
    """Returns a TCP port on which nobody listens.

    The kernel gives ports of its own range to connections, perhaps before a job listens there; so
    this is one below that range, if there are any.
    """
    limits = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    below = range(10_000, int(limits[0]))
    for port in (*random.sample(below, min(100, len(below))), 0):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)) as server:
            return int(server.getsockname()[1])
    raise AssertionError("no TCP port is free")
