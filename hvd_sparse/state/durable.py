"""Files and folders that outlive a power cut.

A rename may reach the disk before the content of the files that it concerns. So whatever a rename
relies upon is synced first.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

# A file system that cannot sync folders says so by one of these. Those that are known to (some
# network and user-space ones) write names through.
_FOLDERS_NOT_SYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


def sync(path: Path) -> None:
    """Waits until a file's content, or the names in a folder, are on the disk.

    Raises:
        OSError: Names the path; the disk may be full, or broken.
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
    """Makes a folder and the parents that it lacks, all of which a power cut leaves in place."""
    lacking = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in reversed(lacking):
        sync(one.parent)
