"""Installs the package beside PyTorch alone, and tests it: no Horovod, no TensorFlow, no MPI.

    tools/try_torch_alone.py                   builds a wheel for that, without optimisation
    tools/try_torch_alone.py --wheel FILE      takes this one, on a PATH without any compiler

    build/torch_alone/cmake     where CMake works: kept, so that only changed files are compiled
    build/torch_alone/venv      a fresh virtual environment, in which the wheel is installed

Nothing is downloaded: the environment has links to those distributions that the package, PyTorch
and the build take, in that of the interpreter that runs this.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from make_wheel import ROOT, install, make_sdist, make_wheel, packages_of, run
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = ROOT / "build" / "torch_alone"
JOB = ROOT / "tools" / "torch_alone_job.py"
PROGRAMS = ("cmake", "ninja")
RANKS = 4
LONGEST_SECONDS = 60  # from installing a wheel to what a user wants to see of it
# Beginnings of variables that are for Horovod's jobs or MPI's, or choose what is built.
FOREIGN = ("HVD_SPARSE_", "HOROVOD_", "OMPI_", "OPAL_", "MPICXX", "PYTHONPATH", "PYTHONHOME")
ALONE = """
import importlib.util, hvd_sparse.ddp
absent = ("horovod", "tensorflow", "mpi4py", "rich", "typer")
assert [name for name in absent if importlib.util.find_spec(name) is not None] == []
try:
    import horovod
except ImportError:
    print("hvd_sparse.ddp is imported, and horovod cannot be")
else:
    raise AssertionError(horovod.__file__)
"""


def link(requirements: Iterable[str], packages: Path, *, extra: str = "") -> None:
    """Links installed distributions into a folder of packages, with all that they require."""
    waiting = [Requirement(one) for one in requirements]
    linked = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if name in linked or not wanted:
            continue
        linked.add(name)
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():  # several may share a folder, as nvidia's do
                (packages / top).symlink_to(distribution.locate_file(top))
        waiting += [Requirement(one) for one in distribution.requires or ()]


def environment(bin_: Path) -> dict[str, str]:
    """Returns the environment of programs on a machine without MPI, with `bin_` first on PATH.

    A folder with both a C++ compiler and MPI's stays on PATH; then the build is told to leave MPI
    out.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    folders = [
        folder
        for folder in os.environ["PATH"].split(os.pathsep)
        if not shutil.which("mpicxx", path=folder) or shutil.which("c++", path=folder)
    ]
    kept["PATH"] = os.pathsep.join([str(bin_), *folders])
    if shutil.which("mpicxx", path=kept["PATH"]):
        kept["HVD_SPARSE_WITH_MPI"] = "0"
    return {**kept, "PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1"}


def make_own_wheel(python: Path, env: dict[str, str]) -> Path:
    """Builds a wheel without optimisation, which is most of what compiling takes."""
    link(["setuptools", "wheel"], packages_of(python))
    for program in PROGRAMS:
        found = shutil.which(program)
        if found is not None:
            python.with_name(program).symlink_to(found)
    source = make_sdist(FOLDER / "dist", FOLDER / "source")
    fast = {"CMAKE_BUILD_TYPE": "None", "HVD_SPARSE_BUILD_DIR": str(FOLDER / "cmake")}
    return make_wheel(source, FOLDER / "dist", python, env | fast, quiet=True)


def make_environment(wheel: Path | None) -> tuple[Path, dict[str, str]]:
    """Makes the environment with the package; returns its Python, and variables for programs."""
    venv.create(FOLDER / "venv", clear=True, with_pip=False)
    bin_ = FOLDER / "venv" / "bin"
    python = bin_ / "python"
    packages = packages_of(python)
    link(["torch", "pip"], packages)
    env = environment(bin_)
    if wheel is None:
        wheel = make_own_wheel(python, env)
    else:
        env["PATH"] = str(bin_)
        tools = [
            name for name in ("c++", "g++", "cc", "cmake") if shutil.which(name, path=str(bin_))
        ]
        assert not tools, tools
    install(wheel, python)
    (own,) = metadata.distributions(name="hvd_sparse", path=[str(packages)])
    link(own.requires or (), packages)
    run([python, "-m", "pip", "--disable-pip-version-check", "check"], env=env, quiet=True)
    return python, env


def check_doctor(python: Path, env: dict[str, str], folder: Path) -> None:
    """Runs the doctor, which must find nothing wrong, and hvd_sparse.ddp ready."""
    doctor = [python.with_name("hvd-sparse"), "doctor", "--json"]
    done = subprocess.run(doctor, env=env, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"hvd-sparse doctor says: {done.stdout}{done.stderr}")
    facts = json.loads(done.stdout)
    parts = facts["hvd_sparse"]["build"]["parts"]
    assert not parts["mpi"]["built"], parts
    assert not parts["tensorflow"]["built"], parts
    assert (facts["ok"], facts["horovod"], facts["tensorflow"]) == (True, None, None), facts
    ready = [one["name"] for one in facts["interfaces"] if not one["lacks"]]
    assert ready == ["hvd_sparse.ddp", "hvd_sparse.fsdp"], ready
    print("hvd-sparse doctor finds hvd_sparse.ddp ready, and no problem")


def try_out(python: Path, env: dict[str, str], folder: Path) -> None:
    """Runs the doctor, two launches of a training that saves and resumes, and a bench."""
    run([python, "-c", ALONE], env=env, cwd=folder)
    packages = packages_of(python)
    (own,) = metadata.distributions(name="hvd_sparse", path=[str(packages)])
    link(own.requires or (), packages, extra="cli")
    check_doctor(python, env, folder)
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    torchrun.append(str(RANKS))
    for options in ([], ["--resume"]):
        run([*torchrun, JOB, folder, *options], env=env, cwd=folder, timeout=120)
    bench = ["-m", "hvd_sparse", "bench", "--numel", "2000", "--repetitions", "2"]
    run([*torchrun, *bench], env=env, cwd=folder, timeout=120, quiet=True)
    print("hvd-sparse bench runs under torchrun")


def main() -> None:
    """Installs and tests; first builds a wheel, if it is given none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path)
    wheel = parser.parse_args().wheel
    begin = time.monotonic()
    python, env = make_environment(wheel)
    with tempfile.TemporaryDirectory(prefix="hvd_sparse-torch_alone-") as folder:
        try_out(python, env, Path(folder))
    seconds = time.monotonic() - begin
    if wheel is not None:
        print(f"installed without a compiler, trained, saved, resumed: {seconds:.0f} s")
        if seconds > LONGEST_SECONDS:
            sys.exit(f"that must take at most {LONGEST_SECONDS} s")


if __name__ == "__main__":
    main()
