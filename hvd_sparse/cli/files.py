"""Files that a command is asked to write: what is wrong with them is found before it works."""

from __future__ import annotations

import os
from pathlib import Path

from hvd_sparse.errors import InvalidArgumentError

PICTURES = (".png", ".pdf", ".svg")


def check_writable(option: str, file: Path, *, in_job: bool = False) -> None:
    """Checks that a file can be written.

    Args:
        option: That names it.
        file: There or not.
        in_job: True if other ranks wait for the one that writes. Then a FIFO is refused: writing
            to it waits for a reader, who may never come.

    Raises:
        InvalidArgumentError: Its folder is missing, or it must not be written.
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
    """Checks that a picture can be drawn, and written.

    Args:
        option: That names it.
        file: There or not.
        in_job: As in `check_writable`.

    Raises:
        InvalidArgumentError: matplotlib is missing, or the file is of no kind that is drawn here,
            or cannot be written.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidArgumentError(f"{option} takes matplotlib: pip install matplotlib") from None
    if file.suffix.lower() not in PICTURES:
        raise InvalidArgumentError(f"{option} must end in {', '.join(PICTURES)}, got {file}")
    check_writable(option, file, in_job=in_job)
