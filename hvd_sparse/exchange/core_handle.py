"""An exchange of the core, from the side of how it ends: by an error, or because it is closed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hvd_sparse import _core
from hvd_sparse.errors import (
    ExchangeFailedError,
    ExchangeTimeoutError,
    HvdSparseError,
    OutOfMemoryError,
    PeerLeftError,
    PeerLostError,
)
from hvd_sparse.ranks import lifecycle

# So long after an operation of Horovod's has failed, it may become known why: longer than the grace
# of a rank that left. And the time between two looks.
_CAUSE_SECONDS, _LOOK_SECONDS = 3.0, 0.005


def failures() -> list[ExchangeFailedError]:
    """What has ended exchanges of this process that are not closed yet."""
    found = []
    for one in lifecycle.still_open():
        if isinstance(one, CoreHandle) and not one.closed:
            try:
                one.check()
            except ExchangeFailedError as error:
                found.append(error)
    return found


class CoreHandle:
    """Owns an exchange of the core, and closes it before MPI ends.

    A process that was forked, as data loaders' workers are, may collect what its parent has thrown
    away. The exchange is the parent's alone, with its threads: there nothing is ended or closed.

    Args:
        core: Used by nobody else.
    """

    def __init__(self, core: _core.Exchange) -> None:
        self._core: _core.Exchange | None = core
        self._process = os.getpid()
        lifecycle.register(self)

    @property
    def closed(self) -> bool:
        """Whether this rank's part was closed."""
        return self._core is None

    @property
    def inherited(self) -> bool:
        """Whether this process was forked by the one whose exchange it is."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raises ExchangeFailedError if the exchange has ended; cheap enough for waiting loops."""
        with self._telling():
            self._open.check()

    def end(self) -> HvdSparseError | None:
        """Returns the error that ended the exchange, or None while it goes on."""
        try:
            self.check()
        except HvdSparseError as error:
            return _without_frames(error)
        return None

    def cause(self) -> HvdSparseError | None:
        """What has ended the exchange, for a rank on which an operation of Horovod's has failed.

        Horovod fails on all ranks when one is gone, and says neither which nor why. That is known
        here soon after, and is waited for. None: the exchange goes on.
        """
        deadline = time.monotonic() + _CAUSE_SECONDS
        while True:
            try:
                with self._telling():
                    self._open.check_at_end()  # one that died or failed, at once
                    self._open.check()  # one that left
            except HvdSparseError as error:
                return _without_frames(error)
            if time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_SECONDS)

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks: every wait, here and there, raises with `reason`."""
        if self._core is not None and not self.inherited:
            self._core.fail(reason)

    def close(self) -> None:
        """Ends this rank's part; ranks that still wait for it are told that it left."""
        if self._core is None or self.inherited:
            return
        try:
            self._core.check_at_end()
        except HvdSparseError as error:
            note_loss(error)  # of which only an op has heard, or nobody
        self._core = None  # warns of a death of which nobody has heard

    @property
    def _open(self) -> _core.Exchange:
        if self._core is None:
            raise HvdSparseError("this exchange is closed: Horovod was shut down, build it anew")
        return self._core

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Around calls of the core that may tell the user that the exchange has ended."""
        core = self._core
        try:
            yield
        except ExchangeFailedError as error:
            if core is not None:
                core.acknowledge()
            note_loss(error)
            raise


def _without_frames(error: HvdSparseError) -> HvdSparseError:
    """An error that a caller may keep: its frames would keep the caller's, and so the error."""
    return error.with_traceback(None)


def note_loss(error: HvdSparseError) -> None:
    """What an error means for the end of this process, if it says that a rank is gone."""
    if isinstance(error, PeerLeftError):
        lifecycle.note_peer_left()
    elif isinstance(error, PeerLostError | ExchangeTimeoutError | OutOfMemoryError):
        # A rank that has given up leaves without finalizing MPI: to the others it is lost, too. One
        # without memory may not be able to.
        lifecycle.note_peer_lost()
