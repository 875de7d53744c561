"""A plugin for pytest, `-p tests.emulated_core`: the core as it is built with an emulated GPU.

It replaces the package's own core, so that tests that need a GPU can run without one. `make
cpptest` builds it; tests/csrc/emulation/device.h describes what the emulation covers.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

NAMES = ("hvd_sparse._core", "hvd_sparse._core_testing")  # of one file


def _load() -> None:
    folder = Path(__file__).resolve().parents[1] / "build" / "tests" / "emulated"
    file = folder / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    for name in NAMES:
        assert name not in sys.modules, "hvd_sparse has loaded its own core before"
        spec = importlib.util.spec_from_file_location(name, file)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    import hvd_sparse

    for name in NAMES:
        setattr(hvd_sparse, name.rpartition(".")[2], sys.modules[name])


_load()
