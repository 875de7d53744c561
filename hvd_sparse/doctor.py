"""Diagnosis of an installation: what keeps sparse exchanges from working, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.version import Version

from hvd_sparse.installation import Facts

MINIMUM_TORCH = Version("2.1")
MINIMUM_HOROVOD = Version("0.28")

REINSTALL = "pip install --no-build-isolation --no-deps --force-reinstall ."
REBUILD_HOROVOD = (
    "pip install --no-build-isolation --no-deps --no-cache-dir --force-reinstall horovod"
)


@dataclass(frozen=True)
class Problem:
    """A problem that keeps sparse exchanges from working, and its remedy."""

    what: str
    do: str


def diagnose(facts: Facts) -> list[Problem]:
    """Finds what keeps hvd_sparse from working with either framework.

    Args:
        facts: Result of installation.examine().

    Returns:
        The problems, the most basic ones first; empty if there are none.
    """
    return [
        *diagnose_core(facts["hvd_sparse"]),
        *diagnose_frameworks(facts),
        *diagnose_horovod(facts),
        *diagnose_mpi(facts),
        *diagnose_devices(facts),
    ]


def supported_frameworks(facts: Facts) -> list[str]:
    """Returns the frameworks that are installed, and that Horovod and this build support."""
    horovod = facts["horovod"] or {}
    found = []
    if facts["torch"] and horovod.get("torch"):
        found.append("PyTorch")
    if facts["tensorflow"] and horovod.get("tensorflow") and _ops(facts)["built"]:
        found.append("TensorFlow")
    return found


def gpu_route(facts: Facts) -> str:
    """Returns how `gtopk` connects GPUs in jobs with this environment, and why."""
    answer = facts["between_gpus"]
    if "error" in answer:
        return f"nobody knows: {answer['error']}"
    for one in answer["means"]:
        if not one["problem"]:
            return f"by {one['name']}, as {one['variable']} asks"
    reasons = [f"{one['name']} is not used: {one['problem']}" for one in answer["means"]]
    return f"by way of the CPUs: {'; '.join(reasons)}"


def _ops(facts: Facts) -> Facts:
    build: Facts = facts["hvd_sparse"]["build"] or {"parts": {}}
    ops: Facts = build["parts"].get("tensorflow", {"built": False})
    return ops


def diagnose_core(core: Facts) -> Iterator[Problem]:
    """Finds problems of the compiled core."""
    if core["error"]:
        yield Problem(
            f"the compiled core cannot be loaded: {core['error']}",
            f"build it for this environment: {REINSTALL}",
        )


def diagnose_frameworks(facts: Facts) -> Iterator[Problem]:
    """Finds problems of the installed frameworks, of which one is enough."""
    torch, tensorflow = facts["torch"], facts["tensorflow"]
    if torch is None and tensorflow is None:
        yield Problem(
            "neither PyTorch nor TensorFlow is installed",
            f"pip install 'torch>={MINIMUM_TORCH}', then HOROVOD_WITH_PYTORCH=1 {REBUILD_HOROVOD}",
        )
    if torch is not None and Version(torch) < MINIMUM_TORCH:
        yield Problem(f"torch {torch} is too old", f"pip install 'torch>={MINIMUM_TORCH}'")
    ops = _ops(facts)
    if tensorflow is not None and ops["built"] and ops["detail"] != tensorflow:
        yield Problem(
            f"this package was built for TensorFlow {ops['detail']} and there is {tensorflow}",
            f"build it again: {REINSTALL}",
        )
    if torch is None and tensorflow is not None and not ops["built"]:
        yield Problem(
            "this package was built without TensorFlow",
            f"HVD_SPARSE_WITH_TENSORFLOW=1 {REINSTALL}",
        )


def diagnose_horovod(facts: Facts) -> Iterator[Problem]:
    """Finds problems of the installed Horovod."""
    horovod = facts["horovod"]
    if horovod is None:
        yield Problem(
            "Horovod is not installed",
            "HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_MPI=1 pip install --no-build-isolation horovod "
            "(for a torch of today its sources need the changes in tools/horovod_changes.py)",
        )
        return
    if Version(horovod["version"]) < MINIMUM_HOROVOD:
        yield Problem(
            f"Horovod {horovod['version']} is too old", f"pip install 'horovod>={MINIMUM_HOROVOD}'"
        )
    usable = [name for name in ("torch", "tensorflow") if facts[name] and horovod[name]]
    if not usable and facts["torch"]:
        yield Problem(
            "Horovod was built without PyTorch", f"HOROVOD_WITH_PYTORCH=1 {REBUILD_HOROVOD}"
        )
    elif not usable and facts["tensorflow"]:
        yield Problem(
            "Horovod was built without TensorFlow", f"HOROVOD_WITH_TENSORFLOW=1 {REBUILD_HOROVOD}"
        )
    if horovod.get("error"):
        yield Problem(f"Horovod cannot be loaded: {horovod['error']}", REBUILD_HOROVOD)
    if not horovod.get("mpi", True) and not horovod.get("gloo", True):
        yield Problem(
            "Horovod was built with neither MPI nor Gloo", f"HOROVOD_WITH_GLOO=1 {REBUILD_HOROVOD}"
        )
    libraries = horovod.get("mpi_libraries", [])
    if len(libraries) > 1:
        yield Problem(
            f"Horovod and this package use different MPI libraries: {', '.join(libraries)}",
            f"build this package with Horovod's: MPICXX=/path/to/mpicxx {REINSTALL} "
            "(HVD_SPARSE_WITH_MPI=0: with none)",
        )


def diagnose_mpi(facts: Facts) -> Iterator[Problem]:
    """Finds problems of MPI at run time, if Horovod may use it."""
    mpi, horovod = facts["mpi"], facts["horovod"] or {}
    if mpi is None or not horovod.get("mpi", True):  # ranks are connected by TCP
        return
    if mpi["mpirun"] is None:
        yield Problem("there is no mpirun on PATH", "put the folder that holds mpicxx on PATH")
    elif mpi.get("error"):
        yield Problem(
            f"MPI cannot be started: {mpi['error']}", f"see what {mpi['mpirun']} -np 1 true says"
        )


def diagnose_devices(facts: Facts) -> Iterator[Problem]:
    """Finds means between GPUs that the environment requires and this installation lacks."""
    answer = facts["between_gpus"] or {}
    for one in answer.get("means", []):
        if one["refusal"]:
            yield Problem(one["refusal"], f"{one['variable']}=auto, or unset it")
