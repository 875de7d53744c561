"""The number of threads that a pass over a gradient may use; decided only here."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hvd_sparse.errors import InvalidArgumentError, UnavailableError

VARIABLE = "HVD_SPARSE_NUM_THREADS"
# Memory bounds a pass, and a few cores saturate it; the others are left to other work.
MOST_BY_DEFAULT = 8


def kernel_threads(
    *,
    local_size: int,
    openmp: bool,
    environment: Mapping[str, str] = os.environ,
    cpus: int | None = None,
) -> int:
    """Returns the number of threads, the calling one included.

    It is HVD_SPARSE_NUM_THREADS if set, else OMP_NUM_THREADS as for the framework's own pool, else
    this rank's share of the processors that it may run on, at most 8; without OpenMP it is one. The
    passes run inside the framework's calls (a gradient hook, an op), on the threads of its pool.

    Args:
        local_size: Ranks on this machine.
        openmp: True if the core was built with OpenMP.
        environment: Environment variables of the process.
        cpus: Number of processors that this process may run on; by default, the system's answer.

    Raises:
        InvalidArgumentError: HVD_SPARSE_NUM_THREADS is not an integer in [1, 1024].
        UnavailableError: It is more than 1, and the core was built without OpenMP.
    """
    wanted = environment.get(VARIABLE, "")
    if wanted:
        if not wanted.isdecimal() or not 1 <= int(wanted) <= 1024:
            raise InvalidArgumentError(
                f"{VARIABLE} must be an integer in [1, 1024], got {wanted!r}"
            )
        if int(wanted) > 1 and not openmp:
            raise UnavailableError(
                f"{VARIABLE} is {wanted}, but the core was built without OpenMP: build it with a "
                "compiler that has it, or set 1"
            )
        return int(wanted)
    if not openmp:
        return 1
    # A list gives the numbers of nested levels; the outermost comes first.
    outermost = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if outermost.isdecimal() and int(outermost) >= 1:
        return min(int(outermost), 1024)
    if cpus is None:
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return max(1, min(cpus // max(local_size, 1), MOST_BY_DEFAULT))
