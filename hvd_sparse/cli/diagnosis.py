"""Diagnosis of an installation: what keeps sparse exchanges from working, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from packaging.version import Version

from hvd_sparse.cli.installation import Facts

MINIMUM_TORCH = Version("2.3")
MINIMUM_FSDP2 = Version("2.7")  # whose groups have an all-reduce hook
MINIMUM_HOROVOD = Version("0.28")
NAMES = {"torch": "PyTorch", "tensorflow": "TensorFlow"}

REINSTALL = "pip install --no-build-isolation --no-deps --force-reinstall ."
REBUILD_HOROVOD = (
    "pip install --no-build-isolation --no-deps --no-cache-dir --force-reinstall horovod"
)


@dataclass(frozen=True)
class Problem:
    """A problem that keeps sparse exchanges from working, and its remedy."""

    what: str
    do: str


@dataclass(frozen=True)
class Interface:
    """A module for users, and what it lacks here.

    Attributes:
        name: The module: "hvd_sparse.ddp".
        launcher: The launcher of its jobs: "torchrun" or "Horovod".
        framework: The framework whose gradients it exchanges: "torch" or "tensorflow".
        lacks: The problems that keep it from working; empty if it works.
    """

    name: str
    launcher: str
    framework: str
    lacks: tuple[Problem, ...]


def diagnose(facts: Facts) -> list[Problem]:
    """Finds what keeps hvd_sparse from working.

    One interface that works is enough: a library that only others need may be missing. One that is
    installed must work with the rest.

    Args:
        facts: Result of installation.examine().

    Returns:
        The problems, the most basic ones first; empty if there are none.
    """
    found = [
        *diagnose_core(facts["hvd_sparse"]),
        *diagnose_torch(facts),
        *diagnose_tensorflow(facts),
        *diagnose_horovod(facts),
        *diagnose_mpi(facts),
        *diagnose_devices(facts),
    ]
    there = interfaces(facts)
    if found or any(not one.lacks for one in there):
        return found
    if facts["torch"] is None and facts["tensorflow"] is None:
        return [
            Problem(
                "neither PyTorch nor TensorFlow is installed",
                f"pip install 'torch>={MINIMUM_TORCH}'; TensorFlow takes Horovod, too",
            )
        ]
    return _unique(lack for one in there if facts[one.framework] for lack in one.lacks)


def interfaces(facts: Facts) -> list[Interface]:
    """Returns the modules for users, each with what it lacks here.

    Args:
        facts: Result of installation.examine().
    """
    core = list(diagnose_core(facts["hvd_sparse"]))
    torch = [*_missing(facts, "torch", f"'torch>={MINIMUM_TORCH}'"), *diagnose_torch(facts)]
    tensorflow = [*_missing(facts, "tensorflow", "tensorflow"), *_lacks_of_tensorflow(facts)]
    distributed = [*torch, *_lacks_of_distributed(facts)]
    found = [
        ("hvd_sparse.ddp", "torchrun", "torch", distributed),
        ("hvd_sparse.fsdp", "torchrun", "torch", [*distributed, *_lacks_of_fsdp2(facts)]),
        ("hvd_sparse.torch", "Horovod", "torch", [*torch, *_lacks_of_horovod(facts, "torch")]),
        (
            "hvd_sparse.tensorflow",
            "Horovod",
            "tensorflow",
            [*tensorflow, *_lacks_of_horovod(facts, "tensorflow")],
        ),
    ]
    return [
        Interface(name, launcher, framework, tuple(_unique([*core, *lacks])))
        for name, launcher, framework, lacks in found
    ]


def _unique(problems: Iterable[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


def _missing(facts: Facts, framework: str, requirement: str) -> Iterator[Problem]:
    if facts[framework] is None:
        yield Problem(f"{NAMES[framework]} is not installed", f"pip install {requirement}")


def _lacks_of_distributed(facts: Facts) -> Iterator[Problem]:
    answer = facts["torch_distributed"]
    if answer is None:  # without torch or the core, which have problems of their own
        return
    again = "install a torch whose torch.distributed works: see https://pytorch.org"
    if "error" in answer:
        yield Problem(f"hvd_sparse.ddp cannot be loaded: {answer['error']}", again)
    elif "gloo" not in answer["backends"]:
        yield Problem("this torch was built without torch.distributed, or without its Gloo", again)


def _lacks_of_fsdp2(facts: Facts) -> Iterator[Problem]:
    torch = facts["torch"]
    if torch is not None and MINIMUM_TORCH <= Version(torch) < MINIMUM_FSDP2:
        yield Problem(
            f"torch {torch} has no FSDP2 for hooks", f"pip install 'torch>={MINIMUM_FSDP2}'"
        )


def _lacks_of_tensorflow(facts: Facts) -> Iterator[Problem]:
    if not _ops(facts)["built"]:
        yield Problem(
            "this package was built without TensorFlow",
            f"HVD_SPARSE_WITH_TENSORFLOW=1 {REINSTALL}",
        )
    yield from diagnose_tensorflow(facts)


def _built_without(framework: str) -> Problem:
    name = NAMES[framework]
    return Problem(
        f"Horovod was built without {name}", f"HOROVOD_WITH_{name.upper()}=1 {REBUILD_HOROVOD}"
    )


def _lacks_of_horovod(facts: Facts, framework: str) -> Iterator[Problem]:
    horovod = facts["horovod"]
    if horovod is None:
        yield Problem(
            "Horovod is not installed",
            f"HOROVOD_WITH_{NAMES[framework].upper()}=1 HOROVOD_WITH_MPI=1 "
            "pip install --no-build-isolation horovod "
            "(for a torch of today its sources need the changes in tools/horovod_changes.py)",
        )
        return
    if not horovod[framework]:
        yield _built_without(framework)
    yield from diagnose_horovod(facts)
    yield from diagnose_mpi(facts)


def gpu_route(facts: Facts) -> str:
    """Returns how blocks go from GPU to GPU in jobs with this environment, and why."""
    answer = facts["between_gpus"]
    if "error" in answer:
        return f"nobody knows: {answer['error']}"
    for one in answer["means"]:
        if not one["problem"]:
            return f"over {one['name']}, if all ranks can; {one['variable']}=0: never"
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


def diagnose_torch(facts: Facts) -> Iterator[Problem]:
    """Finds problems of an installed PyTorch."""
    torch = facts["torch"]
    if torch is not None and Version(torch) < MINIMUM_TORCH:
        yield Problem(f"torch {torch} is too old", f"pip install 'torch>={MINIMUM_TORCH}'")


def diagnose_tensorflow(facts: Facts) -> Iterator[Problem]:
    """Finds problems of an installed TensorFlow."""
    tensorflow, ops = facts["tensorflow"], _ops(facts)
    if tensorflow is not None and ops["built"] and ops["detail"] != tensorflow:
        yield Problem(
            f"this package was built for TensorFlow {ops['detail']} and there is {tensorflow}",
            f"build it again: {REINSTALL}",
        )


def diagnose_horovod(facts: Facts) -> Iterator[Problem]:
    """Finds problems of an installed Horovod."""
    horovod = facts["horovod"]
    if horovod is None:
        return
    if Version(horovod["version"]) < MINIMUM_HOROVOD:
        yield Problem(
            f"Horovod {horovod['version']} is too old", f"pip install 'horovod>={MINIMUM_HOROVOD}'"
        )
    installed = [name for name in NAMES if facts[name]]
    if installed and not any(horovod[name] for name in installed):
        yield _built_without(installed[0])
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
    mpi, horovod = facts["mpi"], facts["horovod"]
    if mpi is None or horovod is None or not horovod.get("mpi", True):  # ranks meet over TCP
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
