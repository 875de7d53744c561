"""A lock on a checkpoint's folder, so that no two jobs write it at the same time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from hvd_sparse.log import logger

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


@contextlib.contextmanager
def saving(folder: Path) -> Iterator[bool]:
    """Keeps other jobs from saving to a folder within the block.

    The kernel locks the file FOLDER.lock, and unlocks it when the process that holds it ends. A
    file that a dead job has left is locked anew.

    Args:
        folder: The folder, whose parent must exist.

    Yields:
        True if the lock is held; False if the file system has no locks.

    Raises:
        OSError: Another job is saving there; names its host, its process and when it began.
    """
    path = folder.with_name(f"{folder.name}.lock")
    descriptor = _open(path, folder)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # forked children have it open, too
            os.close(descriptor)


def _open(path: Path, folder: Path) -> int | None:
    """Locks the file and returns its descriptor; None if the file system has no locks."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, descriptor):
                _sign(descriptor)
                return descriptor
        except BlockingIOError:
            owner = os.pread(descriptor, 1000, 0).decode(errors="replace") or "not signed yet"
            os.close(descriptor)
            raise OSError(
                errno.EBUSY, f"another job is saving a checkpoint there ({owner})", str(folder)
            ) from None
        except OSError as error:
            os.close(descriptor)
            if error.errno not in _NO_LOCKS:
                raise
            path.unlink(missing_ok=True)
            logger.warning(
                "%s has no file locks (%s): another job that saves to %s at the same time would "
                "not be noticed",
                folder.parent,
                error.strerror,
                folder,
            )
            return None
        os.close(descriptor)  # another job has just deleted this file: lock the next one


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    """Writes the lock's owner into the file."""
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    text = f"host {socket.gethostname()}, process {os.getpid()}, since {since}"
    with contextlib.suppress(OSError):  # the disk may be full; a dead job's text goes anyway
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
