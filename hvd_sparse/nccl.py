"""Where NCCL may be that Python packages bring."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGE = "nvidia.nccl"  # of the distributions nvidia-nccl-cu12, nvidia-nccl-cu13, ...


def package_libraries() -> list[str]:
    """The files of NCCL in this Python's packages, most of which torch has brought.

    Nothing is imported. The system's loader does not look there; where torch was imported before,
    it has loaded its own copy, which is then found without this.
    """
    try:
        spec = importlib.util.find_spec(PACKAGE)
    except ImportError:  # not even the parent is there
        return []
    folders = (spec.submodule_search_locations if spec else None) or []
    files = (Path(folder, "lib", "libnccl.so.2") for folder in folders)
    return [str(file) for file in files if file.exists()]
