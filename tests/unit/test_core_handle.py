"""The end of an exchange: who is told, what is acknowledged, and what remains."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hvd_sparse import _core
from hvd_sparse.compression.sparsifiers import TopK
from hvd_sparse.errors import (
    ExchangeFailedError,
    ExchangeTimeoutError,
    HvdSparseError,
    InvalidArgumentError,
    OutOfMemoryError,
    PeerLeftError,
    PeerLostError,
    RanksDisagreeError,
)
from hvd_sparse.exchange import core_handle
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.core_handle import CoreHandle
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer
from hvd_sparse.ranks import lifecycle


class Core:
    """An exchange of the core whose check raises `error`."""

    def __init__(self, error):
        self._error, self.acknowledged = error, 0

    def check(self):
        raise self._error

    def acknowledge(self):
        self.acknowledged += 1

    def check_at_end(self):
        pass


@pytest.mark.parametrize(
    ("kind", "told", "noted"),
    [
        (PeerLostError, 1, ["lost"]),
        (PeerLeftError, 1, ["left"]),
        (ExchangeTimeoutError, 1, ["lost"]),
        (OutOfMemoryError, 1, ["lost"]),
        (RanksDisagreeError, 1, []),
        (ExchangeFailedError, 1, []),
        (InvalidArgumentError, 0, []),
    ],
)
def test_an_end_that_is_raised_is_acknowledged(monkeypatch, kind, told, noted):
    heard = []
    monkeypatch.setattr(lifecycle, "note_peer_lost", lambda: heard.append("lost"))
    monkeypatch.setattr(lifecycle, "note_peer_left", lambda: heard.append("left"))
    core = Core(kind("the end"))
    handle = CoreHandle(core)
    with pytest.raises(HvdSparseError, match="the end"):
        handle.check()
    assert (core.acknowledged, heard) == (told, noted)
    handle.close()


class LateEnd:
    """An exchange of the core whose end becomes known only after some looks."""

    def __init__(self, looks, *, death=None, departure=None):
        self._looks, self._death, self._departure = looks, death, departure

    def check_at_end(self):
        self._looks -= 1
        if self._looks < 0 and self._death is not None:
            raise self._death

    def check(self):
        if self._looks < 0 and self._departure is not None:
            raise self._departure

    def acknowledge(self):
        pass


@pytest.mark.parametrize("looks", [0, 3])
@pytest.mark.parametrize("how", ["death", "departure"])
def test_why_horovod_has_failed_is_waited_for(how, looks):
    error = ExchangeFailedError("rank 1 is gone")
    handle = CoreHandle(LateEnd(looks, **{how: error}))
    assert handle.cause() is error
    handle.close()


def test_why_horovod_has_failed_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(core_handle, "_CAUSE_SECONDS", 0.05)
    handle = CoreHandle(LateEnd(1000))
    assert handle.cause() is None
    handle.close()


# Python 3.12 and newer warn when a process with several threads forks, which this job does on
# purpose. Everything else on stderr fails the test.
FORKED = """
import os, signal, time, warnings
from pathlib import Path
from hvd_sparse import _core
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange

warnings.filterwarnings("ignore", r"This process .* is multi-threaded", DeprecationWarning)
exchange = Exchange.over_loopback(_core.LoopbackWorld(1), 0)
while any(Path(f"/proc/self/task/{task}/stat").read_text().split()[2] != "S"
          for task in os.listdir("/proc/self/task") if int(task) != os.getpid()):
    time.sleep(0.001)  # until its thread waits for something to do
child = os.fork()
if child == 0:
    signal.alarm(20)
    exchange.fail("a child must not matter")
    exchange.close()
    del exchange
    os._exit(0)
_, status = os.waitpid(child, 0)
exchange.check()
exchange.close()
raise SystemExit(status)
"""


def test_a_forked_child_that_collects_an_exchange_neither_ends_it_nor_waits_for_its_threads():
    job = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True)
    assert (job.returncode, job.stderr) == (0, "")


@pytest.mark.parametrize("waits", [False, True])
def test_closing_amid_a_step_gives_back_what_was_taken(waits):
    gradient = np.arange(1, 101, dtype=np.float32)
    residual, states = np.ones(100, np.float32), np.zeros((1, 4), np.float32)
    expected = residual + gradient
    world = _core.LoopbackWorld(1)
    exchange = Exchange.over_loopback(world, 0)
    bucket = exchange.add_bucket(
        "a",
        numels=[100],
        segments=[100],
        max_ks=[10],
        sparsifier=TopK(),
        collective="gtopk",
    )
    steps = ArraySteps(exchange, bucket)
    steps.begin(residual=Buffer.of(residual), states=Buffer.of(states))
    steps.launch(0, [Buffer.of(gradient)])
    if waits:
        steps.wait()
    assert np.count_nonzero(residual) == 90
    exchange.close()
    assert np.array_equal(residual, expected)
    with pytest.raises(ExchangeFailedError, match="closed while gradients were in flight"):
        Exchange.over_loopback(world, 0).check()
