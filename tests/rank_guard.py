"""Hooks of pytest for tests that run on every rank at once.

A failed rank ends the run for all, and no rank hangs. A conftest.py installs them by
`globals().update(hooks("horovod.torch"))`.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import time
from typing import Any

import pytest

TIMEOUT_S = 60
STDERR = pytest.StashKey()


def hooks(horovod: str, *, timeout: float = TIMEOUT_S) -> dict[str, Any]:
    """Returns the hooks and fixtures by name.

    Args:
        horovod: Name of Horovod's module for a framework.
        timeout: Limit for one test, in seconds.
    """
    os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    # Which tensors Horovod fuses depends on timing, and with three ranks MPI sums long messages in
    # another order than short ones: dense sums would have different bits from run to run.
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")
    hvd = importlib.import_module(horovod)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(config):
        config.addinivalue_line("markers", "runs_first: needs a Horovod that has met no error yet")
        config.stash[STDERR] = os.fdopen(os.dup(2), "w")  # unlike the one that pytest captures
        hvd.init()
        if hvd.rank() != 0 and config.pluginmanager.hasplugin("terminalreporter"):
            # A failed rank prints its own report.
            config.pluginmanager.getplugin("terminalreporter")._tw._file = open(  # noqa: SIM115
                os.devnull, "w"
            )

    def pytest_collection_modifyitems(items):
        items.sort(key=lambda item: item.get_closest_marker("runs_first") is None)

    @pytest.fixture(autouse=True)
    def no_rank_hangs(pytestconfig):
        faulthandler.dump_traceback_later(timeout, exit=True, file=pytestconfig.stash[STDERR])
        yield
        gc.collect()  # ends discarded optimizers' exchanges now, on all ranks alike
        gc.freeze()  # remaining objects (the framework's) need no further scans
        faulthandler.cancel_dump_traceback_later()

    @pytest.fixture(scope="module")
    def first_and_last():
        """A process set of the first and the last rank."""
        if hvd.size() < 3:
            pytest.skip("needs three ranks")
        made = hvd.add_process_set([0, hvd.size() - 1])
        yield made
        hvd.remove_process_set(made)

    @pytest.fixture(scope="module")
    def sets():
        """Two overlapping process sets, without the last rank and without the first."""
        size = hvd.size()
        if size < 3:
            pytest.skip("needs three ranks")
        made = [hvd.add_process_set(range(size - 1)), hvd.add_process_set(range(1, size))]
        yield made
        for process_set in made:
            hvd.remove_process_set(process_set)

    @pytest.fixture(params=["all ranks", "two ranks"])
    def ranks(request):
        """All ranks, and then a process set of two."""
        if request.param == "all ranks":
            return hvd.global_process_set
        return request.getfixturevalue("first_and_last")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        """Ends the run if a rank failed: its peers would wait for it in a collective."""
        report = yield
        if report.failed and hvd.size() > 1:
            text = f"rank {hvd.rank()}: {report.nodeid}\n{report.longreprtext}"
            print(text, file=item.config.stash[STDERR], flush=True)
            time.sleep(1)  # others fail for the same reason: let them print it, too
            os._exit(1)  # mpirun then ends the others
        return report

    functions = (
        pytest_configure,
        pytest_collection_modifyitems,
        pytest_runtest_makereport,
    )
    fixtures = {
        "no_rank_hangs": no_rank_hangs,
        "first_and_last": first_and_last,
        "sets": sets,
        "ranks": ranks,
    }
    return {hook.__name__: hook for hook in functions} | fixtures
