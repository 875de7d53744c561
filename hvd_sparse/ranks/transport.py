"""The transport between the ranks of an exchange: MPI, or TCP sockets of our own.

The default is MPI if Horovod itself uses it, with threads, and this build has it; otherwise it is
TCP, as under `horovodrun --gloo`. HVD_SPARSE_TRANSPORT overrides it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import ModuleType

from hvd_sparse import _core
from hvd_sparse.errors import InvalidArgumentError, UnavailableError

MPI = "mpi"
TCP = "tcp"
LOOPBACK = "loopback"  # threads of one process; for a job of one rank, and for tests

TRANSPORTS = (MPI, TCP)
VARIABLE = "HVD_SPARSE_TRANSPORT"


def problem_with_mpi(hvd: ModuleType) -> str:
    """Returns the reason why exchanges of this job cannot use MPI; an empty string if they can.

    Args:
        hvd: `horovod.torch` or `horovod.tensorflow`, after `hvd.init()`.
    """
    if not _core.with_mpi:
        return "hvd_sparse was built without it: build it again with HVD_SPARSE_WITH_MPI=1"
    if not hvd.mpi_enabled():
        return (
            "Horovod runs over Gloo in this job: start it with `horovodrun --mpi` or `mpirun`, "
            "with a Horovod built with HOROVOD_WITH_MPI=1"
        )
    if not hvd.mpi_threads_supported():
        return (
            "MPI runs without MPI_THREAD_MULTIPLE in this job: unset HOROVOD_MPI_THREADS_DISABLE, "
            "or use an MPI library built with thread support"
        )
    return ""


def choose(mpi_problem: str, asked: str | None = None) -> str:
    """Chooses the transport of a new exchange.

    Args:
        mpi_problem: The result of `problem_with_mpi`.
        asked: "mpi" or "tcp"; None: the value of HVD_SPARSE_TRANSPORT, if it is set.

    Raises:
        InvalidArgumentError: A transport was asked for that does not exist.
        UnavailableError: MPI was asked for, and cannot be used.
    """
    by = "transport"
    if asked is None:
        by, asked = VARIABLE, os.environ.get(VARIABLE, "")
    if asked not in ("", *TRANSPORTS):
        raise InvalidArgumentError(f"{by} must be 'mpi' or 'tcp', got {asked!r}")
    if asked == MPI and mpi_problem:
        raise UnavailableError(f"{by} is 'mpi', which cannot be used: {mpi_problem}")
    return asked or (TCP if mpi_problem else MPI)


def require_one(transports: Sequence[str]) -> None:
    """Ensures that all ranks use the same transport.

    Args:
        transports: The transport that each rank has chosen, in the order of the ranks.

    Raises:
        InvalidArgumentError: The transports differ.
    """
    for rank, theirs in enumerate(transports):
        if theirs != transports[0]:
            raise InvalidArgumentError(
                f"all ranks must use one transport: rank {rank} has chosen {theirs!r} and rank 0 "
                f"{transports[0]!r}; give {VARIABLE} to all of them, or to none"
            )
