"""A plugin for pytest, `-p tests.emulated_core`: the core as it is built with an emulated GPU.

It replaces the package's own core, so that tests that need a GPU can run without one. `make
cpptest` builds it; tests/csrc/emulation/device.h describes what the emulation covers. `--one-in=3`
skips two of three tests.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

import pytest

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


def pytest_addoption(parser):
    """Adds the option for the share of tests to run."""
    parser.addoption("--one-in", type=int, default=1, help="run one test in so many")


@pytest.hookimpl(trylast=True)  # after all other options have deselected tests
def pytest_collection_modifyitems(config, items):
    """Keeps one test in `--one-in`."""
    one_in = config.getoption("--one-in")
    left_out = [item for index, item in enumerate(items) if index % one_in]
    config.hook.pytest_deselected(items=left_out)
    items[:] = items[::one_in]


_load()
