"""The tree of a commit beside the working tree, with its module built: for compare.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "compare"
SOURCES = ("csrc", "cmake", "CMakeLists.txt", "setup.py")  # of the module
MODULES = ("_core.*.so", "_core_testing.*.so", "_build_info.json", "tensorflow/_ops.so")
TELLING_LINES = 20  # of a build's output, if it fails


class BaseError(Exception):
    """BASE cannot be had, or not be built."""


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs git in the working tree."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


def commit_of(base: str) -> str:
    """Returns the hash of the commit that BASE names.

    Raises:
        BaseError: It names none.
    """
    asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}")
    found = git(*asked)
    if not base or found.returncode != 0:
        raise BaseError(
            f"BASE must name a commit of this repository, as main or HEAD~1, got {base!r} "
            "(a shallow clone lacks earlier commits)"
        )
    return found.stdout.strip()


def modules_of(tree: Path) -> list[Path]:
    """Returns what the build leaves in a tree's package.

    Raises:
        BaseError: It is not built.
    """
    package = tree / "hvd_sparse"
    found = [sorted(package.glob(pattern)) for pattern in MODULES]
    if not all(found[:-1]):  # TensorFlow's part is optional
        raise BaseError(f"hvd_sparse is not built in {tree}: run `make build` there")
    return [file for files in found for file in files]


def same_sources(commit: str) -> bool:
    """Returns true if the working tree would build the same module as the commit."""
    differ = git("diff", "--quiet", commit, "--", *SOURCES).returncode != 0
    return not differ and not git("ls-files", "--others", "--exclude-standard", *SOURCES).stdout


def checked_out(commit: str) -> Path:
    """Returns a folder with the commit's tree and module, which are made if they are not there.

    Raises:
        BaseError: The working tree's module is missing, or the commit cannot be built.
    """
    tree, built = FOLDER / commit, modules_of(ROOT)
    if not tree.exists():
        part = tree.with_name(f"{commit}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        archive = subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", part], stdin=archive.stdout, check=True)
        if archive.wait() != 0:
            raise BaseError(f"git archive {commit} failed")
        part.rename(tree)
    if same_sources(commit):
        for file in built:
            place = tree / file.relative_to(ROOT)
            place.unlink(missing_ok=True)
            shutil.copy2(file, place, follow_symlinks=False)
    else:
        build(tree)
    modules_of(tree)
    return tree


def build(tree: Path) -> None:
    """Builds a tree's module in place; where nothing has changed, that takes seconds.

    Raises:
        BaseError: The build failed.
    """
    print(f"building {tree}", flush=True)
    environment = os.environ | {"HVD_SPARSE_BUILD_DIR": str(tree / "build" / "module")}
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        last = "\n".join(done.stdout.splitlines()[-TELLING_LINES:])
        raise BaseError(f"building {tree} failed:\n{last}")
