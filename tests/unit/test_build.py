"""The build: options named like Horovod's are honoured, or refused with a clear message."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # it looks at tools alone

ROOT = Path(__file__).resolve().parents[2]


def configure(folder, *, before="", builds=True, inplace=False, **options):
    """Runs setup.py up to CMake's configuration; CMake's build step leaves empty files.

    Args:
        folder: Folder of the build.
        before: Statements that run before setup.py, on one line.
        builds: True if the build step leaves files.
        inplace: True to build in place, where nothing is left unless the build step leaves files.
        options: Variables of the environment.
    """
    program = (
        "import runpy, subprocess, sys, sysconfig\n"
        "from pathlib import Path\n"
        f"{before}\n"
        "run = subprocess.run\n"
        "def step(command, **options):\n"
        "    if '--build' not in command:\n"
        "        return run(command, **options)\n"
        "    module = '_core' + sysconfig.get_config_var('EXT_SUFFIX')\n"
        f"    for name in [module, '_ops.so'] if {builds} else []:\n"
        "        Path(command[2], name).touch()\n"
        "subprocess.run = step\n"
        "sys.argv = ['setup.py', '--quiet', 'build_ext', '--build-lib', *sys.argv[1:]]\n"
        "runpy.run_path('setup.py', run_name='__main__')\n"
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith("HVD_SPARSE_")}
    # Detecting TensorFlow takes seconds, so tests must request it.
    env |= {"HVD_SPARSE_BUILD_DIR": str(folder / "cmake"), "HVD_SPARSE_WITH_TENSORFLOW": "0"}
    env |= options
    return subprocess.run(
        [sys.executable, "-c", program, str(folder / "lib"), *(["--inplace"] if inplace else [])],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def parts_of(folder):
    """Returns the build's record of its optional parts."""
    return json.loads((folder / "build_info.json").read_text())["parts"]


@pytest.mark.long  # a fresh clone begins anew, and a second `make` goes on
def test_a_folder_begins_anew_for_another_compiler_or_python_and_else_goes_on(tmp_path):
    folder = tmp_path / "cmake"
    kept = folder / "CMakeFiles" / "kept"
    assert configure(tmp_path, CXXFLAGS="-DFIRST=1").returncode == 0
    kept.touch()
    assert configure(tmp_path, CXXFLAGS="-DFIRST=1").returncode == 0
    assert kept.exists()
    assert configure(tmp_path, CXXFLAGS="-DSECOND=2").returncode == 0
    assert not kept.exists()
    commands = (folder / "compile_commands.json").read_text()
    assert "-DSECOND=2" in commands
    assert "-DFIRST=1" not in commands
    kept.touch()
    another = "sysconfig.get_config_vars()['SOABI'] = 'cpython-399'"
    at_once = "subprocess.run = lambda *_, **__: sys.exit('without CMake')"
    done = configure(tmp_path, before=f"{another}; {at_once}", CXXFLAGS="-DSECOND=2")
    assert "without CMake" in done.stdout
    assert not kept.exists()


def test_a_module_that_was_not_built_ends_the_build(tmp_path):
    done = configure(tmp_path, builds=False)
    assert done.returncode != 0
    name = "_core" + sysconfig.get_config_var("EXT_SUFFIX")
    assert f"CMake built no {name} in {tmp_path / 'cmake'}" in done.stdout


def test_only_a_build_in_place_has_what_tests_and_benchmarks_call(tmp_path):
    commands = tmp_path / "cmake" / "compile_commands.json"
    configure(tmp_path, builds=False, inplace=True)
    assert "python_testing.cc" in commands.read_text()
    assert configure(tmp_path).returncode == 0
    assert "python_testing.cc" not in commands.read_text()


def test_what_is_installed_has_no_types_of_modules_for_tests(tmp_path):
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert [file.name for file in tmp_path.glob("hvd_sparse/_core*")] == ["_core.pyi"]


def test_both_modules_share_one_core():
    core, testing = (find_spec(f"hvd_sparse.{name}").origin for name in ("_core", "_core_testing"))
    assert Path(core).samefile(testing)


def test_required_nccl_without_cuda_ends_the_build(tmp_path):
    done = configure(tmp_path, HVD_SPARSE_WITH_NCCL="1")
    assert done.returncode != 0
    assert "HVD_SPARSE_WITH_NCCL=1 takes HVD_SPARSE_WITH_CUDA=1" in " ".join(done.stdout.split())


def test_required_cuda_that_is_not_found_ends_the_build(tmp_path):
    done = configure(tmp_path, HVD_SPARSE_WITH_CUDA="1", CUDACXX="/bin/false")
    assert done.returncode != 0
    assert "HVD_SPARSE_WITH_CUDA=1, but no nvcc was found" in " ".join(done.stdout.split())


@pytest.mark.long  # `make cudaends` is configured with CUDA
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc on PATH")
def test_cuda_is_taken_for_all_gpus_or_those_asked_for_and_nccl_can_be_left_out(tmp_path):
    folder = tmp_path / "cmake"
    for _ in range(2):  # CMake caches nvcc's default the first time
        done = configure(tmp_path, HVD_SPARSE_WITH_CUDA="1", CUDAARCHS="")
        assert done.returncode == 0, done.stdout
        parts = parts_of(folder)
        assert parts["cuda"]["built"]
        assert re.fullmatch(
            r"nvcc [0-9.]+ for (70-real )?75-real 80-real 86-real 89-real 90.*",
            parts["cuda"]["detail"],
        )
        assert parts["nccl"]["built"]
    commands = folder / "compile_commands.json"
    assert "csrc/cuda/transport/nccl_" in commands.read_text()
    asked = ["-DHVD_SPARSE_WITH_NCCL=0", "-DCMAKE_CUDA_ARCHITECTURES=80"]
    ours = os.environ | {"CUDAARCHS": ""}
    for options in (asked, []):  # an option given once is kept
        subprocess.run(["cmake", *options, folder], env=ours, check=True, capture_output=True)
        assert parts_of(folder)["cuda"]["detail"].endswith(" for 80")
        assert "csrc/cuda/transport/nccl_" not in commands.read_text()


def test_required_tensorflow_that_cannot_be_imported_ends_the_build(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('it is broken')")
    path = {"PYTHONPATH": str(tmp_path)}
    done = configure(tmp_path, HVD_SPARSE_WITH_TENSORFLOW="1", **path)
    assert done.returncode != 0
    said = " ".join(done.stdout.split())
    assert "HVD_SPARSE_WITH_TENSORFLOW=1, but" in said
    assert "it is broken" in said
    configure(tmp_path, HVD_SPARSE_WITH_TENSORFLOW="", **path)
    parts = parts_of(tmp_path / "cmake")
    assert not parts["tensorflow"]["built"]


@pytest.mark.long  # the module of all tests is built with TensorFlow
@pytest.mark.skipif(find_spec("tensorflow") is None, reason="there is no TensorFlow here")
def test_tensorflow_is_taken_with_its_version(tmp_path):
    configure(tmp_path, HVD_SPARSE_WITH_TENSORFLOW="1")
    parts = parts_of(tmp_path / "cmake")
    assert parts["tensorflow"] == {"built": True, "detail": version("tensorflow-cpu")}


def test_tensorflow_may_lie_below_a_path_with_a_space(tmp_path):
    place = tmp_path / "a folder"
    (place / "tensorflow").mkdir(parents=True)
    (place / "tensorflow" / "__init__.py").write_text(
        "__version__ = '2.99'\n"
        "class sysconfig:\n"
        f"    get_compile_flags = lambda: ['-I{place}/include', '-DSOME=1']\n"
        f"    get_link_flags = lambda: ['-L{place}', '-l:libsome.so']\n"
    )
    done = configure(tmp_path, HVD_SPARSE_WITH_TENSORFLOW="1", PYTHONPATH=str(place))
    assert done.returncode == 0, done.stdout
    commands = json.loads((tmp_path / "cmake" / "compile_commands.json").read_text())
    (ops,) = (one for one in commands if one["file"].endswith("tensorflow_ops.cc"))
    assert {f"-isystem{place}/include", "-DSOME=1"} <= set(shlex.split(ops["command"]))


def test_required_mpi_that_is_not_found_ends_the_build(tmp_path):
    # mpicxx lies beside the interpreter here: only a wrapper that does not work hides it.
    done = configure(tmp_path, HVD_SPARSE_WITH_MPI="1", MPICXX="/bin/false")
    assert done.returncode != 0
    assert "HVD_SPARSE_WITH_MPI=1, but no MPI was found" in " ".join(done.stdout.split())


def test_mpi_is_left_out_where_it_is_not_wanted(tmp_path):
    done = configure(tmp_path, HVD_SPARSE_WITH_MPI="0")
    assert "without MPI: HVD_SPARSE_WITH_MPI=0" in done.stdout
    parts = parts_of(tmp_path / "cmake")
    assert parts["mpi"] == {"built": False, "detail": "HVD_SPARSE_WITH_MPI=0"}


@pytest.mark.long  # the module of all tests is built with MPI
def test_mpi_is_taken_where_it_is_found(tmp_path):
    configure(tmp_path)
    parts = parts_of(tmp_path / "cmake")
    assert parts["mpi"]["built"]
    assert not parts["cuda"]["built"]
    assert "HVD_SPARSE_WITH_CUDA=1" in parts["cuda"]["detail"]


@pytest.mark.parametrize("value", ["yes", "2", "ON"])
def test_an_option_takes_0_and_1_only(tmp_path, value):
    done = configure(tmp_path, HVD_SPARSE_WITH_MPI=value)
    assert done.returncode != 0
    assert f"HVD_SPARSE_WITH_MPI must be 0, 1 or unset, got '{value}'" in done.stdout


def make_help(folder):
    """Runs `make help` in a folder with the project's Makefile."""
    command = ["make", "--no-print-directory", "-f", ROOT / "Makefile", "help"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_make_refuses_a_path_with_a_space(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    done = make_help(folder)
    assert done.returncode != 0
    assert f"make takes a checkout whose path has no space, got '{folder}'" in done.stderr


def test_make_help_lists_every_target_that_is_described():
    described = re.findall(r"^([^\s:#]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = [line.split()[0] for line in make_help(ROOT).stdout.splitlines()]
    assert listed == described


def files_of_git(*options):
    """Returns the files that `git ls-files` lists."""
    done = subprocess.run(["git", "ls-files", *options], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("no git, or no repository")
    return set(done.stdout.splitlines())


def test_the_sdist_holds_all_that_git_tracks_and_nothing_that_it_ignores(tmp_path):
    tracked, new = files_of_git(), files_of_git("--others", "--exclude-standard")
    making = ["egg_info", "--egg-base", str(tmp_path), "sdist", "--dist-dir", str(tmp_path)]
    command = [sys.executable, "setup.py", "--quiet", *making]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        held = {file.name.partition("/")[2] for file in tar if not file.isdir()}
    made = {name for name in held if name in ("PKG-INFO", "setup.cfg") or ".egg-info/" in name}
    assert tracked <= held
    assert held - made <= tracked | new
