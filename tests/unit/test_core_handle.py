"""Who is told of the end of an exchange, and what then is known to have been told."""

from __future__ import annotations

import pytest

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
from hvd_sparse.exchange.core_handle import CoreHandle
from hvd_sparse.ranks import lifecycle


class Core:
    """An exchange of the core that has ended, or meets a mistake."""

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
