"""What must happen to exchanges before Horovod, and with it MPI, goes away."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from typing import Protocol


class Closeable(Protocol):
    """What is to be closed before MPI ends."""

    def fail(self, reason: str) -> None:
        """Ends the work on all ranks."""

    def close(self) -> None:
        """Ends this rank's part and frees what it holds."""


_open: weakref.WeakSet[Closeable] = weakref.WeakSet()
_peer_lost = False
_registered = False


def register(closeable: Closeable) -> None:
    """Closes `closeable` at the latest when the interpreter ends.

    Called when an exchange is built, hence after hvd.init(): handlers run in reverse order, so ours
    comes before the one in which Horovod finalizes MPI.
    """
    global _registered
    _open.add(closeable)
    if not _registered:
        atexit.register(_at_exit)
        _registered = True


def close_all() -> None:
    """Closes every exchange of this process; further ones may be built after hvd.init()."""
    for closeable in list(_open):
        closeable.close()
    _open.clear()


def note_peer_lost() -> None:
    """Remembers that MPI cannot be finalized any more: a rank is gone that would have to help."""
    global _peer_lost
    _peer_lost = True


def _at_exit() -> None:
    unhandled = getattr(sys, "last_value", None)
    if unhandled is not None:
        for closeable in list(_open):
            closeable.fail(f"unhandled {type(unhandled).__name__}: {unhandled}")
    close_all()
    if _peer_lost:
        # Horovod's own exit handler would wait for the lost rank for ever.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
