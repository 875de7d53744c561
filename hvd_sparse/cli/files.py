"""Checks of output files, made before a command begins its work."""

from __future__ import annotations

import os
from pathlib import Path

from hvd_sparse.errors import InvalidArgumentError

PICTURES = (".png", ".pdf", ".svg")


def check_writable(option: str, file: Path, *, in_job: bool = False) -> None:
    """Checks that a file can be written.

    Args:
        option: The option that names the file, for errors.
        file: The file, which need not exist.
        in_job: True if other ranks wait for the one that writes. A FIFO is then refused: writing to
            it waits for a reader, who may never come.

    Raises:
        InvalidArgumentError: The file's folder is missing, or the file is not writable.
    """
    folder = file.absolute().parent
    if not folder.is_dir():
        why = f"there is no folder {folder}"
    elif file.is_dir():
        why = "that is a folder"
    elif in_job and file.is_fifo():
        why = "that is a FIFO"
    elif not os.access(file if file.exists() else folder, os.W_OK):
        why = "permission denied"
    else:
        return
    raise InvalidArgumentError(f"{option} must name a file that can be written, got {file}: {why}")


def check_picture(option: str, file: Path, *, in_job: bool = False) -> None:
    """Checks that a plot can be drawn and written.

    Args:
        option: The option that names the file, for errors.
        file: The file, which need not exist.
        in_job: Passed on to `check_writable`.

    Raises:
        InvalidArgumentError: matplotlib is missing, the file's suffix is not one of PICTURES, or
            the file cannot be written.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidArgumentError(f"{option} takes matplotlib: pip install matplotlib") from None
    if file.suffix.lower() not in PICTURES:
        raise InvalidArgumentError(f"{option} must end in {', '.join(PICTURES)}, got {file}")
    check_writable(option, file, in_job=in_job)
