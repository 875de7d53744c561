"""Hooks of pytest for tests that run on every rank at once.

A failed rank ends the run for all, and no rank hangs. A conftest.py takes them in by
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
    """The hooks, and fixtures, by name.

    Args:
        horovod: Its module for a framework.
        timeout: Seconds of patience with one test.
    """
    os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    # What Horovod fuses is a matter of time, and with three ranks MPI adds up long messages in
    # another order than short ones: dense sums would have other bits from run to run.
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")
    hvd = importlib.import_module(horovod)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(config):
        config.addinivalue_line("markers", "runs_first: needs a Horovod that has met no error yet")
        config.stash[STDERR] = os.fdopen(os.dup(2), "w")  # not the one that pytest captures
        hvd.init()
        if hvd.rank() != 0 and config.pluginmanager.hasplugin("terminalreporter"):
            # What a failed rank has to say it prints itself.
            config.pluginmanager.getplugin("terminalreporter")._tw._file = open(  # noqa: SIM115
                os.devnull, "w"
            )

    def pytest_collection_modifyitems(items):
        items.sort(key=lambda item: item.get_closest_marker("runs_first") is None)

    @pytest.fixture(autouse=True)
    def no_rank_hangs(pytestconfig):
        faulthandler.dump_traceback_later(timeout, exit=True, file=pytestconfig.stash[STDERR])
        yield
        gc.collect()  # of what was discarded the exchange ends now, on all ranks alike
        gc.freeze()  # what is left (the framework's own) need not be looked through again
        faulthandler.cancel_dump_traceback_later()

    @pytest.fixture(scope="module")
    def first_and_last():
        """A process set of two ranks."""
        if hvd.size() < 3:
            pytest.skip("needs three ranks")
        made = hvd.add_process_set([0, hvd.size() - 1])
        yield made
        hvd.remove_process_set(made)

    @pytest.fixture(params=["all ranks", "two ranks"])
    def ranks(request):
        """All of them, and then a process set of two."""
        if request.param == "all ranks":
            return hvd.global_process_set
        return request.getfixturevalue("first_and_last")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        """A failed rank would leave its peers waiting in a collective, so it ends the run."""
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
    fixtures = {"no_rank_hangs": no_rank_hangs, "first_and_last": first_and_last, "ranks": ranks}
    return {hook.__name__: hook for hook in functions} | fixtures
