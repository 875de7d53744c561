"""Builds an sdist and, from that alone, a wheel for PyTorch; then tests the wheel elsewhere.

    dist/hvd_sparse-VERSION.tar.gz             the files that git tracks
    dist/hvd_sparse-VERSION-*manylinux*.whl    for this Python, and Linux from that C library on

The wheel links neither MPI nor a framework; what else it links, auditwheel puts into it, or refuses
it. It is tested under Horovod over TCP, in a fresh environment outside the checkout, which finds
torch and Horovod in that of the interpreter that runs this; and with PyTorch alone, without a
compiler (try_torch_alone.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
UNPACKED = ROOT / "build" / "sdist"

# What a wheel for everybody leaves out, and has: code for GPUs is loaded where there is a driver.
PORTABLE = {
    "HVD_SPARSE_WITH_MPI": "0",
    "HVD_SPARSE_WITH_TENSORFLOW": "0",
    "HVD_SPARSE_WITH_CUDA": "1" if shutil.which("nvcc") else "0",
}
SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
# Conservation on every rank: everything that was not applied is in the residuals, exactly.
SMOKE = """
import sys, horovod.torch as hvd, torch, hvd_sparse
from hvd_sparse.torch import sparse_allreduce
assert hvd_sparse.__file__.startswith(sys.prefix), hvd_sparse.__file__
hvd.init()
tensor, residual = torch.arange(1.0, 1001.0), torch.zeros(1000)
result = sparse_allreduce(tensor, residual, op=hvd.Sum)
assert result.count_nonzero() == 10, result.count_nonzero()
assert torch.equal(result + hvd.allreduce(residual, op=hvd.Sum), hvd.size() * tensor)
if hvd.rank() == 0:
    print(f"{hvd.size()} rank(s): 10 of 1000 entries applied, the others kept")
"""


def run(command: list[str | Path], *, quiet: bool = False, **options: object) -> None:
    """Runs a command, and exits if it fails. Quiet: prints output only on failure."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=quiet, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{done.stderr or ''}failed: {' '.join(words)[:200]}")


def only_match(pattern: str, folder: Path = DIST) -> Path:
    """Returns the one file in a folder that matches."""
    (found,) = folder.glob(pattern)
    return found


def make_sdist(folder: Path, unpacked: Path) -> Path:
    """Makes the sdist in a folder, and unpacks it elsewhere; returns the folder of its sources."""
    for former in folder.glob("hvd_sparse-*"):
        former.unlink()
    run([sys.executable, "-c", SDIST, folder], cwd=ROOT, quiet=True)
    shutil.rmtree(unpacked, ignore_errors=True)
    shutil.unpack_archive(only_match("hvd_sparse-*.tar.gz", folder), unpacked)
    (source,) = unpacked.iterdir()
    return source


def make_wheel(
    source: Path, folder: Path, python: str | Path, env: Mapping[str, str], *, quiet: bool = False
) -> Path:
    """Makes the wheel of an sdist's sources in a folder, by a Python's pip; returns the wheel."""
    pip = [python, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    run(
        [*pip, "--no-build-isolation", "--no-deps", "--wheel-dir", folder, source],
        quiet=quiet,
        env=env,
    )
    return only_match("hvd_sparse-*.whl", folder)


def install(wheel: Path, python: Path) -> None:
    """Installs the wheel, and nothing else, by a Python's pip."""
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    run([*pip, "--no-index", "--no-deps", wheel])


def packages_of(python: Path) -> Path:
    """Returns the folder of a Python's packages."""
    site = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", site], check=True, capture_output=True, text=True)
    return Path(done.stdout.strip())


def build() -> Path:
    """Builds sdist and wheel; returns the wheel, as auditwheel has repaired it."""
    source = make_sdist(DIST, UNPACKED)
    # Always the same folder for CMake, so that only changed files are compiled.
    env = {**os.environ, **PORTABLE, "HVD_SPARSE_BUILD_DIR": str(ROOT / "build" / "wheel")}
    with tempfile.TemporaryDirectory(prefix="hvd_sparse-wheel-") as folder:
        linked = make_wheel(source, Path(folder), sys.executable, env)
        audit = [sys.executable, "-m", "auditwheel"]
        run([*audit, "repair", "--wheel-dir", DIST, linked], quiet=True)
    wheel = only_match("hvd_sparse-*manylinux*.whl")
    run([*audit, "show", wheel])
    return wheel


def make_environment(wheel: Path, folder: Path) -> Path:
    """Installs the wheel in a fresh environment; returns its folder of programs."""
    venv.create(folder, with_pip=True)
    bin_ = folder / "bin"
    install(wheel, bin_ / "python")
    # A line of a .pth file adds a folder, but not that folder's own .pth files, such as an editable
    # install of this very package.
    own = packages_of(bin_ / "python")
    (own / "elsewhere.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return bin_


def try_out(bin_: Path, folder: Path) -> None:
    """Runs the doctor, and an exchange on one rank of Horovod and on two."""
    env = {**os.environ, "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}"}
    env.pop("PYTHONPATH", None)
    smoke = folder / "smoke.py"
    smoke.write_text(SMOKE)
    mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2"]
    run([bin_ / "hvd-sparse", "doctor"], env=env, cwd=folder)
    run([bin_ / "python", smoke], env=env, cwd=folder, timeout=120)
    run([*mpirun, bin_ / "python", smoke], env=env, cwd=folder, timeout=120)


def main() -> None:
    """Builds, installs and tests."""
    wheel = build()
    with tempfile.TemporaryDirectory(prefix="hvd_sparse-wheel-") as folder:
        try_out(make_environment(wheel, Path(folder, "venv")), Path(folder))
    run([sys.executable, ROOT / "tools" / "try_torch_alone.py", "--wheel", wheel])
    for file in (only_match("hvd_sparse-*.tar.gz"), wheel):
        print(f"{file.relative_to(ROOT)}  {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
