"""Finds out how this package was built, what is installed, and what MPI, CUDA and NCCL offer.

Probes that may hang or end a process (loading torch or Horovod, initialising MPI or a GPU's driver)
run in processes of their own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import hvd_sparse

PROBE_SECONDS = 120
TENSORFLOW_NAMES = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly")

Facts: TypeAlias = dict[str, Any]

# Each probe prints JSON as its last line. The first two load a framework before the core, as users
# do.
ASK_DISTRIBUTED = """
import json, torch
from torch import distributed as dist
backends = [name for name in ("gloo", "nccl") if getattr(dist, f"is_{name}_available", bool)()]
if backends:
    import hvd_sparse.ddp
print(json.dumps(dict(backends=backends)))
"""
ASK_HOROVOD = """
import importlib, json, os
hvd = importlib.import_module("horovod.{framework}")
from hvd_sparse import _core
maps = open("/proc/self/maps").read().splitlines()
paths = sorted(set(line.split()[-1] for line in maps if "/libmpi" in line))
names = ("libmpi.so", "libmpich.so")
print(json.dumps(dict(
    mpi=bool(hvd.mpi_built()), gloo=bool(hvd.gloo_built()), nccl=bool(hvd.nccl_built()),
    mpi_libraries=[p for p in paths if os.path.basename(p).startswith(names)],
)))
"""
ASK_MPI = """
import json
from hvd_sparse import _core
thread_level, memory_problem = _core.ask_mpi()
print(json.dumps(dict(thread_level=thread_level, memory_problem=memory_problem)))
"""
ASK_CUDA = """
import json
from hvd_sparse import _core
from hvd_sparse.errors import UnavailableError
try:
    print(json.dumps(dict(devices=_core.cuda_devices())))
except UnavailableError as error:
    print(json.dumps(dict(error=str(error))))
"""
ASK_NCCL = """
import json
from hvd_sparse import _core
from hvd_sparse.ranks import nccl
from hvd_sparse.errors import UnavailableError
_core.look_for_nccl_at(nccl.package_libraries())
try:
    version, path = _core.find_nccl()
    print(json.dumps(dict(version=version, path=path)))
except UnavailableError as error:
    print(json.dumps(dict(error=str(error))))
"""
# Its argument: why messages cannot lie in a GPU's memory; empty if they can.
ASK_MEANS = """
import json, sys
from hvd_sparse import _core
from hvd_sparse.ranks import nccl
_core.look_for_nccl_at(nccl.package_libraries())
facts = _core.ask_gpu_transports(sys.argv[1], device="cuda:0")
names = ("name", "variable", "problem", "refusal")
print(json.dumps(dict(means=[{name: getattr(one, name) for name in names} for one in facts])))
"""


def examine() -> Facts:
    """Gathers everything that can be found out without a job.

    Returns:
        Plain values, as --json prints them; None for anything that is not installed.
    """
    core = examine_core()
    horovod = examine_horovod()
    facts: Facts = {
        "hvd_sparse": {"version": hvd_sparse.__version__, **core},
        "python": platform.python_version(),
        "torch": version_of("torch"),
        "torch_distributed": examine_distributed(core),
        "tensorflow": version_of(*TENSORFLOW_NAMES),
        "horovod": horovod,
        "mpi": examine_mpi() if core["mpi_library"] else None,
        "cuda": ask([sys.executable, "-c", ASK_CUDA]) if core["with_cuda"] else None,
        "nccl": ask([sys.executable, "-c", ASK_NCCL]) if core["with_nccl"] else None,
    }
    return {**facts, "between_gpus": examine_means(facts)}


def examine_core() -> Facts:
    """Describes the compiled core, and how it was built."""
    path = Path(__file__).parents[1] / "_build_info.json"
    facts: Facts = {
        "folder": str(path.parent),
        "build": json.loads(path.read_text()) if path.exists() else None,
        "error": None,
        "instruction_set": None,
        "mpi_library": None,
        "with_cuda": False,
        "with_nccl": False,
    }
    try:
        from hvd_sparse import _core
    except ImportError as error:
        return {**facts, "error": str(error)}
    library = _core.mpi_library_version().split(",")[0].strip()
    return {
        **facts,
        "instruction_set": _core.instruction_set(),
        "mpi_library": library or None,
        "with_cuda": _core.with_cuda,
        "with_nccl": _core.with_nccl,
    }


def examine_distributed(core: Facts) -> Facts | None:
    """Returns the backends of torch.distributed, after hvd_sparse.ddp was loaded beside it.

    Args:
        core: Result of examine_core().

    Returns:
        {"backends": [...]}, [] if torch was built without torch.distributed; or {"error": what went
        wrong}; None without torch, or if the core cannot be loaded.
    """
    if core["error"] or version_of("torch") is None:
        return None
    return ask([sys.executable, "-c", ASK_DISTRIBUTED])


def examine_horovod() -> Facts | None:
    """Returns Horovod's version and parts; None if it is not installed."""
    version = version_of("horovod")
    spec = importlib.util.find_spec("horovod")
    if version is None or spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    facts: Facts = {"version": version}
    for framework in ("torch", "tensorflow"):
        facts[framework] = any(folder.joinpath(framework).glob("mpi_lib*.so"))
    for framework in ("torch", "tensorflow"):
        if facts[framework] and importlib.util.find_spec(framework) is not None:
            answer = ask([sys.executable, "-c", ASK_HOROVOD.format(framework=framework)])
            return {**facts, **answer}
    return facts


def examine_mpi() -> Facts:
    """Finds mpirun, and the thread level that MPI grants under it."""
    beside_python = str(Path(sys.executable).parent)
    mpirun = shutil.which("mpirun") or shutil.which("mpirun", path=beside_python)
    if mpirun is None:
        return {"mpirun": None}
    return {"mpirun": mpirun, **ask([mpirun, "-np", "1", sys.executable, "-c", ASK_MPI])}


def transports(facts: Facts) -> list[str]:
    """Returns the transports that can connect the ranks of a job here, the default one first."""
    horovod, mpi = facts["horovod"] or {}, facts["mpi"] or {}
    both = facts["hvd_sparse"]["mpi_library"] and horovod.get("mpi")
    return ["MPI", "TCP"] if both and mpi.get("thread_level") == "MPI_THREAD_MULTIPLE" else ["TCP"]


def examine_means(facts: Facts) -> Facts | None:
    """Asks the core for the means that can connect GPUs, best first; None without a GPU."""
    if not (facts["cuda"] or {}).get("devices"):
        return None
    problem = "ranks cannot be connected by MPI here"
    if "MPI" in transports(facts):
        problem = facts["mpi"]["memory_problem"]
    return ask([sys.executable, "-c", ASK_MEANS, problem])


def ask(command: list[str]) -> Facts:
    """Runs a probe; returns its answer, or {"error": what went wrong}."""
    env = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=PROBE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        return {"error": lines[-1] if lines else f"exit status {done.returncode}"}
    answer: Facts = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def version_of(*names: str) -> str | None:
    """Returns the version of the first of these distributions that is installed."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
