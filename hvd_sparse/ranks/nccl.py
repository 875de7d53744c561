"""Finds the copies of NCCL that Python packages contain."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGE = "nvidia.nccl"  # of the distributions nvidia-nccl-cu12, nvidia-nccl-cu13, ...


def package_libraries() -> list[str]:
    """Returns NCCL's library files in this Python's packages, usually installed with torch.

    Imports nothing. The system's loader does not search there; if torch was imported before, it has
    loaded its own copy, which is then found without this.
    """
    try:
        spec = importlib.util.find_spec(PACKAGE)
    except ImportError:  # even the parent package is missing
        return []
    folders = (spec.submodule_search_locations if spec else None) or []
    files = (Path(folder, "lib", "libnccl.so.2") for folder in folders)
    return [str(file) for file in files if file.exists()]
