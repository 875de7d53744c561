"""Hooks of pytest for tests that run on every rank at once.

A failed rank ends the run for all, and no rank hangs. A conftest.py installs them by
`globals().update(hooks(Horovod("horovod.torch")))`.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import time
from collections.abc import Sequence
from typing import Any, Protocol

import pytest

TIMEOUT_S = 60
STDERR = pytest.StashKey()
TWO_RANKS = "two ranks"  # of three or more


class Library(Protocol):
    """The library that runs the ranks."""

    def start(self) -> None:
        """Initialises it, on all ranks."""

    def rank(self) -> int:
        """Returns this process's rank."""

    def size(self) -> int:
        """Returns the number of ranks."""

    def everyone(self) -> Any:
        """Returns the set of all ranks."""

    def add_set(self, ranks: Sequence[int]) -> Any:
        """Makes a set of some ranks, on all ranks."""

    def remove_set(self, ranks: Any) -> None:
        """Removes a set, on all ranks."""


class Horovod:
    """Horovod.

    Args:
        module: Name of its module for a framework.
    """

    def __init__(self, module: str) -> None:
        os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        # Which tensors Horovod fuses depends on timing, and with three ranks MPI sums long messages
        # in another order than short ones: dense sums would have different bits from run to run.
        os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")
        self._hvd = importlib.import_module(module)
        self.start, self.rank, self.size = self._hvd.init, self._hvd.rank, self._hvd.size
        self.add_set, self.remove_set = self._hvd.add_process_set, self._hvd.remove_process_set

    def everyone(self) -> Any:
        return self._hvd.global_process_set


def hooks(library: Library, *, timeout: float = TIMEOUT_S) -> dict[str, Any]:
    """Returns the hooks and fixtures by name.

    Args:
        library: The library that runs the ranks.
        timeout: Limit for one test, in seconds.
    """

    @pytest.hookimpl(trylast=True)
    def pytest_configure(config):
        config.addinivalue_line("markers", "runs_first: needs ranks that have met no error yet")
        config.stash[STDERR] = os.fdopen(os.dup(2), "w")  # unlike the one that pytest captures
        library.start()
        if library.rank() != 0 and config.pluginmanager.hasplugin("terminalreporter"):
            # A failed rank prints its own report.
            config.pluginmanager.getplugin("terminalreporter")._tw._file = open(  # noqa: SIM115
                os.devnull, "w"
            )

    def pytest_collection_modifyitems(items):
        items.sort(key=lambda item: item.get_closest_marker("runs_first") is None)
        for item in items:  # tests/shares.py deals with those that are skipped by a mark
            callspec = getattr(item, "callspec", None)
            of_two = callspec is not None and callspec.params.get("ranks") == TWO_RANKS
            if of_two or {"sets", "first_and_last"} & set(item.fixturenames):
                item.add_marker(pytest.mark.skipif(library.size() < 3, reason="needs three ranks"))
            if "several_ranks" in item.fixturenames:
                alone = library.size() == 1
                item.add_marker(pytest.mark.skipif(alone, reason="a single rank exchanges nothing"))

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
        if library.size() < 3:
            pytest.skip("needs three ranks")
        made = library.add_set([0, library.size() - 1])
        yield made
        library.remove_set(made)

    @pytest.fixture(scope="module")
    def sets():
        """Two overlapping process sets, without the last rank and without the first."""
        size = library.size()
        if size < 3:
            pytest.skip("needs three ranks")
        made = [library.add_set(range(size - 1)), library.add_set(range(1, size))]
        yield made
        for process_set in made:
            library.remove_set(process_set)

    @pytest.fixture(params=["all ranks", TWO_RANKS])
    def ranks(request):
        """All ranks, and then a process set of two."""
        if request.param == "all ranks":
            return library.everyone()
        return request.getfixturevalue("first_and_last")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        """Ends the run if a rank failed: its peers would wait for it in a collective."""
        report = yield
        if report.failed and library.size() > 1:
            text = f"rank {library.rank()}: {report.nodeid}\n{report.longreprtext}"
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
