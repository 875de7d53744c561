"""Builds hvd_sparse._core with CMake; everything else about the package is in pyproject.toml.

Options, by environment variables, in Horovod's manner:

    HVD_SPARSE_WITH_MPI, HVD_SPARSE_WITH_TENSORFLOW, HVD_SPARSE_WITH_CUDA, HVD_SPARSE_WITH_NCCL
                            1: required, 0: left out, unset: whatever is found (CUDA: left out;
                            NCCL: with CUDA)
    MPICXX                  MPI's compiler wrapper (default: mpicxx on PATH)
    CUDACXX, CUDAARCHS      nvcc (default: nvcc on PATH), and the GPUs to compile for (default: all)
    HVD_SPARSE_BUILD_DIR    where CMake works (default: a folder below build/ for each environment);
                            it begins anew there if the environment is another one
    CXX, CXXFLAGS, LDFLAGS, CMAKE_BUILD_PARALLEL_LEVEL    as CMake knows them
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
PARTS = ("MPI", "TENSORFLOW", "CUDA", "NCCL")
# What CMake takes from the environment when a folder is configured for the first time only.
READ_ONCE = ("CXX", "CXXFLAGS", "LDFLAGS", "CUDACXX", "CUDAARCHS")


def find_cmake() -> str:
    """CMake on PATH, else beside this interpreter."""
    cmake = shutil.which("cmake") or shutil.which("cmake", path=Path(sys.executable).parent)
    if cmake is None:
        sys.exit("building hvd_sparse takes CMake: pip install cmake")
    return cmake


def find_pybind11() -> str:
    """The folder with pybind11's headers: its own package, else the copy that torch brings."""
    for package, folder in (("pybind11", "include"), ("torch", "include")):
        spec = importlib.util.find_spec(package)
        for location in (spec.submodule_search_locations or []) if spec else []:
            include = Path(location, folder)
            if (include / "pybind11" / "pybind11.h").exists():
                return str(include)
    sys.exit("building hvd_sparse takes pybind11: pip install pybind11")


def cmake_arguments(for_development: bool) -> list[str]:
    """The definitions that tell CMake of this environment and of the user's options."""
    definitions = {
        "Python_EXECUTABLE": sys.executable,
        "HVD_SPARSE_PYBIND11_INCLUDE": find_pybind11(),
        "CMAKE_BUILD_TYPE": os.environ.get("CMAKE_BUILD_TYPE", "Release"),
    }
    for part in PARTS:
        value = os.environ.get(f"HVD_SPARSE_WITH_{part}", "")
        if value not in ("", "0", "1"):
            sys.exit(f"HVD_SPARSE_WITH_{part} must be 0, 1 or unset, got {value!r}")
        definitions[f"HVD_SPARSE_WITH_{part}"] = value
    mpicxx = os.environ.get("MPICXX") or shutil.which("mpicxx")
    if mpicxx:
        definitions["MPI_CXX_COMPILER"] = mpicxx
    arguments = [f"-DHVD_SPARSE_CORE_TESTING={'ON' if for_development else 'OFF'}"]
    arguments += [f"-D{name}={value}" for name, value in definitions.items()]
    if shutil.which("ninja"):
        arguments.append("-GNinja")
    return arguments


def digest_of_environment(cmake: str, arguments: list[str]) -> str:
    """Names all that a build folder keeps from its first configuration."""
    variables = [os.environ.get(name) for name in READ_ONCE]
    kept = [str(ROOT), cmake, *arguments, sysconfig.get_config_var("SOABI"), *variables]
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:12]


def begin_anew_if_changed(folder: Path, environment: str) -> None:
    """Removes what CMake keeps in a folder that was configured in another environment."""
    stamp = folder / "environment.txt"
    if stamp.exists() and stamp.read_text() == environment:
        return
    (folder / "CMakeCache.txt").unlink(missing_ok=True)
    if (folder / "CMakeFiles").exists():
        shutil.rmtree(folder / "CMakeFiles")
    folder.mkdir(parents=True, exist_ok=True)
    stamp.write_text(environment)


class CMakeBuild(build_ext):
    """Runs CMake, then puts the module and the record of its parts where setuptools wants them."""

    def run(self) -> None:
        """Builds the extension; in place, as for editable installs, with the module for tests."""
        self.for_development = bool(self.inplace)  # which super().run() resets while it builds
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Builds the one extension; nothing is compiled again that has not changed."""
        cmake, arguments = find_cmake(), cmake_arguments(self.for_development)
        environment = digest_of_environment(cmake, arguments)
        folder = Path(os.environ.get("HVD_SPARSE_BUILD_DIR") or ROOT / "build" / environment)
        begin_anew_if_changed(folder, environment)
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count())
        try:
            subprocess.run([cmake, "-S", ROOT, "-B", folder, *arguments], check=True)
            subprocess.run([cmake, "--build", folder, "--parallel", jobs], check=True)
        except subprocess.CalledProcessError:
            sys.exit("building hvd_sparse failed; CMake's messages above say why")

        target = Path(self.get_ext_fullpath(ext.name))
        info = target.with_name("_build_info.json")
        built = {target.name: target, "build_info.json": info}
        parts = json.loads((folder / "build_info.json").read_text())["parts"]
        if parts["tensorflow"]["built"]:
            built["_ops.so"] = target.parent / "tensorflow" / "_ops.so"
        for name, place in built.items():
            if not (folder / name).exists():
                sys.exit(f"CMake built no {name} in {folder}; remove that folder, and build again")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / name, place)

    def copy_extensions_to_source(self) -> None:
        """For editable installs: what was built into the package's sources."""
        package = Path(self.get_finalized_command("build_py").get_package_dir("hvd_sparse"))
        built = Path(self.build_lib, "hvd_sparse")
        for pattern in ("_core.*.so", "_build_info.json", "tensorflow/_ops.so"):
            for file in built.glob(pattern):
                place = package / file.relative_to(built)
                fresh = place.with_name(f"{place.name}.fresh")
                shutil.copy2(file, fresh)
                fresh.replace(place)  # at once: running programs keep the old one
        # The file also holds hvd_sparse._core_testing; see csrc/bindings/python_testing.cc.
        core = package / self.get_ext_filename("_core")
        fresh = core.with_name(f"{core.name}.fresh")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(core.name)
        fresh.replace(core.with_name(core.name.replace("_core", "_core_testing", 1)))


setup(
    license="Apache-2.0",
    ext_modules=[Extension("hvd_sparse._core", [])],
    cmdclass={"build_ext": CMakeBuild},
)
