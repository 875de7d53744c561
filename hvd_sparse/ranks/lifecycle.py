"""Ends exchanges before Horovod, and MPI with it, is shut down."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, Protocol

from hvd_sparse import _core
from hvd_sparse.errors import UnsupportedError
from hvd_sparse.ranks import world

# Time for the ranks that are alive to finalize MPI together, also under load.
FINALIZE_SECONDS = 10.0


class Failing(Protocol):
    """Work that can be ended on all ranks."""

    def fail(self, reason: str) -> None:
        """Ends the work on all ranks."""


class Closeable(Failing, Protocol):
    """An object that must be closed before MPI ends."""

    def close(self) -> None:
        """Ends this rank's part and frees what it holds."""


_open: weakref.WeakSet[Closeable] = weakref.WeakSet()
_peer_lost = False
_peer_left = False
_registered = False


def register(closeable: Closeable) -> None:
    """Closes `closeable` at the latest when the interpreter ends.

    Called when an exchange is built, hence after hvd.init(): handlers run in reverse order, so ours
    comes before the one in which Horovod finalizes MPI.
    """
    _open.add(closeable)
    _register_exit()


def still_open() -> list[Closeable]:
    """Returns the registered objects; some of them may have been closed already."""
    return list(_open)


def close_all() -> None:
    """Closes every exchange of this process; further ones may be built after hvd.init()."""
    for closeable in list(_open):
        closeable.close()
    _open.clear()


def shut_down(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Shuts Horovod down after ending all exchanges; replaces Horovod's own function for users."""
    global _peer_lost, _peer_left
    close_all()
    result = stock(*args, **kwargs)
    _peer_lost = _peer_left = False  # no rank waits for that one any more
    world.reset_serials()
    return result


def refuse_join(exchanges: Iterable[Failing], *, advice: str = "") -> NoReturn:
    """Refuses hvd.join(), and ends what the other ranks wait for.

    Args:
        exchanges: The exchanges of this process.
        advice: Text that says how to give all ranks the same number of batches.

    Raises:
        UnsupportedError: Always.
    """
    reason = (
        "hvd.join() cannot be used with sparse compressions: every rank has to take part in every "
        f"step. Give all ranks the same number of batches{advice}"
    )
    for exchange in exchanges:
        exchange.fail(reason)
    raise UnsupportedError(reason)


def note_peer_lost() -> None:
    """Remembers that MPI cannot be finalized any more: a rank that is needed for it is gone."""
    global _peer_lost
    _peer_lost = True
    _register_exit()  # the rank may be lost before there is an exchange


def note_peer_left() -> None:
    """Remembers that a rank that left may already wait for this one in MPI's finalization."""
    global _peer_left
    _peer_left = True


def _register_exit() -> None:
    global _registered
    if not _registered:
        atexit.register(_at_exit)
        _registered = True


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
    if _peer_left:
        # Horovod's own exit handler finalizes MPI with that rank, which may have died since: limit
        # the time.
        _core.exit_within(FINALIZE_SECONDS)
