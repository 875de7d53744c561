"""Installs the requirements, then Horovod, for the interpreter that runs this.

torch is installed as its CPU build (+cpu) if an index that pip knows has it: the default build for
Linux includes gigabytes of CUDA.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import build_horovod

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
CONSTRAINTS = Path(__file__).parent / "constraints" / "{}.{}.txt".format(*sys.version_info)


def pip_install(*arguments: str, may_fail: bool = False) -> bool:
    """Runs pip install; returns true if it succeeded, or exits if it had to.

    Python compiles what is imported; of all modules, which takes half a minute, that is a part.
    """
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    command += ["--no-compile"]
    output = subprocess.PIPE if may_fail else None
    done = subprocess.run([*command, *arguments], stdout=output, stderr=output, text=True)
    if done.returncode != 0 and not may_fail:
        sys.exit(f"pip install {' '.join(arguments)} failed; its messages above say why")
    return done.returncode == 0


def pinned(name: str) -> str:
    """Returns the version of `name` in the requirements."""
    for line in REQUIREMENTS.read_text().splitlines():
        if line.startswith(f"{name}=="):
            return line.split("==")[1].split(";")[0].strip()
    raise LookupError(f"{REQUIREMENTS.name} does not pin {name}")


def install_torch() -> None:
    """Installs torch without its requirements, which are installed with all the others."""
    requirement = f"torch=={pinned('torch')}"
    if pip_install("--no-deps", f"{requirement}+cpu", may_fail=True):
        return
    print(
        f"taking {requirement} with CUDA: to avoid that, let PIP_EXTRA_INDEX_URL name PyTorch's "
        "index of CPU builds",
        flush=True,
    )
    pip_install(requirement)


def main() -> None:
    """Installs everything that is not there already."""
    print("installing the requirements", flush=True)
    install_torch()
    pip_install("-r", str(REQUIREMENTS), "-c", str(CONSTRAINTS))
    build_horovod.main()


if __name__ == "__main__":
    main()
