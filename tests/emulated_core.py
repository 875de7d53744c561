"""A plugin for pytest, `-p tests.emulated_core`: the core as it is built with an emulated GPU.

It stands in for the package's own, so that what takes a GPU is tested where there is none. `make
cpptest` builds it; tests/csrc/emulation/device.h says what the emulation shows. `--one-in=3` leaves
out two of three tests.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

import pytest

NAME = "hvd_sparse._core"


def _load() -> None:
    folder = Path(__file__).resolve().parents[1] / "build" / "tests" / "emulated"
    file = folder / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    spec = importlib.util.spec_from_file_location(NAME, file)
    assert NAME not in sys.modules, "hvd_sparse has loaded its own core before"
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    import hvd_sparse

    hvd_sparse._core = module


def pytest_addoption(parser):
    """How many to run."""
    parser.addoption("--one-in", type=int, default=1, help="run one test in so many")


@pytest.hookimpl(trylast=True)  # of those that all other options leave
def pytest_collection_modifyitems(config, items):
    """Runs no more than that."""
    one_in = config.getoption("--one-in")
    left_out = [item for place, item in enumerate(items) if place % one_in]
    config.hook.pytest_deselected(items=left_out)
    items[:] = items[::one_in]


_load()
