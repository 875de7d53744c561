"""Prints a folder with GoogleTest's sources, which are fetched first if this machine has none.

They are kept in $XDG_CACHE_HOME/hvd_sparse/googletest (default ~/.cache). Sources are needed
because the sanitizers require GoogleTest to be compiled like the tests. No package on PyPI has
them, so they come from Debian's or Ubuntu's package (apt can download into folders of its own
without root), or else from GoogleTest's repository.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from build_horovod import cache_root

INSTALLED = Path("/usr/src/googletest")
REPOSITORY = "https://github.com/google/googletest.git"
TAG = "v1.15.2"


def has_sources(folder: Path) -> bool:
    """Returns true if CMake can build GoogleTest from `folder`."""
    return (folder / "CMakeLists.txt").exists() and (folder / "googletest" / "src").is_dir()


def from_apt(scratch: Path) -> Path:
    """Downloads the distribution's package, with apt's lists and caches in `scratch`."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise RuntimeError("this is no Debian or Ubuntu")
    for folder in ("lists/partial", "archives/partial"):
        (scratch / folder).mkdir(parents=True)
    options = {
        "Dir::State::lists": scratch / "lists",
        "Dir::Cache::archives": scratch / "archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "",  # if run as root: apt's own user cannot write to our folder
        "APT::Update::Post-Invoke": "",
        "APT::Update::Post-Invoke-Success": "",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    run([*apt, "update"], scratch)
    run([*apt, "download", "googletest"], scratch)
    (package,) = scratch.glob("googletest_*.deb")
    run(["dpkg-deb", "-x", str(package), "package"], scratch)
    return scratch / "package" / "usr" / "src" / "googletest"


def from_git(scratch: Path) -> Path:
    """Clones the release."""
    clone = ["git", "clone", "--quiet", "--depth=1", f"--branch={TAG}", REPOSITORY, "googletest"]
    run(clone, scratch)
    return scratch / "googletest"


def run(command: list[str], folder: Path) -> None:
    """Runs a command in `folder`; its output appears only in the error."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(str(error)) from error
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:1] + command[-2:])}: {done.stderr.strip()}")


def fetch(target: Path, ways: list[Callable[[Path], Path]]) -> None:
    """Makes `target` in the first way that works; it appears complete or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    failures = []
    for way in ways:
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            try:
                sources = way(Path(scratch))
                if not has_sources(sources):
                    raise RuntimeError("no sources of GoogleTest came out")
                shutil.rmtree(target, ignore_errors=True)
                sources.rename(target)
                return
            except RuntimeError as error:
                failures.append(f"  {way.__name__}: {error}")
    sys.exit(
        "\n".join(["the sources of GoogleTest could not be had:", *failures])
        + f"\nUnpack them into {target}, or run make GTEST_SOURCE=/path/to/googletest ..."
    )


def main() -> None:
    """Prints the folder."""
    target = cache_root() / "googletest"
    for folder in (INSTALLED, target):
        if has_sources(folder):
            print(folder)
            return
    fetch(target, [from_apt, from_git])
    print(target)


if __name__ == "__main__":
    main()
