"""Tests that run on every rank at once: a failed rank ends the run for all, and no rank hangs."""

from __future__ import annotations

import faulthandler
import gc
import os
import time

os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")

import horovod.torch as hvd
import pytest

TIMEOUT_S = 60
STDERR = pytest.StashKey()


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
    faulthandler.dump_traceback_later(TIMEOUT_S, exit=True, file=pytestconfig.stash[STDERR])
    yield
    gc.collect()  # of a discarded optimizer the exchange ends now, on all ranks alike
    gc.freeze()  # what is left (torch's own modules) need not be looked through again
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed rank would leave its peers waiting in a collective, so it ends the run for all."""
    report = yield
    if report.failed and hvd.size() > 1:
        text = f"rank {hvd.rank()}: {report.nodeid}\n{report.longreprtext}"
        print(text, file=item.config.stash[STDERR], flush=True)
        time.sleep(1)  # others fail for the same reason: let them print it, too
        os._exit(1)  # mpirun then ends the others
    return report
