"""Files and folders that survive a power cut.

A rename may reach the disk before the content of the renamed files does. So that content is synced
first.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

# Errors of file systems that cannot sync folders. Those that are known for it (some network and
# user-space ones) write names through.
_FOLDERS_NOT_SYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


def sync(path: Path) -> None:
    """Waits until a file's content, or the names in a folder, are on the disk.

    Raises:
        OSError: The disk is full or broken, for example; names the path.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in _FOLDERS_NOT_SYNCED):
            raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Makes a folder and its missing parents, all of which survive a power cut."""
    lacking = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in reversed(lacking):
        sync(one.parent)
