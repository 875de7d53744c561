"""Replaces the former checkpoint by a new one, on one file system.

    FOLDER                a whole checkpoint
    FOLDER.old            the former one, until all machines have renamed the new one
    FOLDER.lock           exists while a job saves
    FOLDER.making-...     a checkpoint that is being written
    FOLDER.removing-...   a checkpoint that is being deleted
    FOLDER.kept-...       what was in the way and no whole checkpoint; the user may delete it

Folders are renamed before they are deleted. So neither FOLDER nor FOLDER.old is ever an incomplete
checkpoint, unless the disk or another program has damaged it.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from hvd_sparse.errors import CheckpointMismatchError
from hvd_sparse.log import logger
from hvd_sparse.state.durable import make_folder, sync
from hvd_sparse.state.folder_lock import saving
from hvd_sparse.state.manifest import manifest_at


def old_of(folder: Path) -> Path:
    """Returns the path of the former checkpoint while a new one takes its place."""
    return folder.with_name(f"{folder.name}.old")


def making_of(folder: Path, checkpoint: str) -> Path:
    """Returns the path at which the checkpoint with this id is written."""
    return folder.with_name(f"{folder.name}.making-{checkpoint}")


@contextlib.contextmanager
def making(folder: Path, checkpoint: str) -> Iterator[None]:
    """Makes the folder in which a checkpoint is written, and deletes it unless it was renamed.

    Raises:
        OSError: It cannot be made, or another job is saving to FOLDER.
    """
    make_folder(folder.parent)
    with saving(folder) as alone:
        if alone:  # otherwise they may belong to a running job
            _delete(folder, "making")
        made = making_of(folder, checkpoint)
        made.mkdir()
        try:
            yield
        finally:
            shutil.rmtree(made, ignore_errors=True)


def id_at(place: Path) -> str | None:
    """Returns the id of the whole checkpoint that is there; None if there is none."""
    try:
        manifest = manifest_at(place)
    except CheckpointMismatchError:
        return None
    return None if manifest is None else manifest.checkpoint


def put_in_place(checkpoint: str, folder: Path, former: str | None) -> None:
    """Renames a new checkpoint to FOLDER; a power cut does not undo it.

    Args:
        checkpoint: The new checkpoint's id; its files are on the disk.
        folder: FOLDER. What is there becomes FOLDER.old, unless that is the former checkpoint.
        former: Id of the checkpoint that all machines have, as FOLDER or FOLDER.old; None if there
            is none.
    """
    old = old_of(folder)
    if former is not None and id_at(old) == former:
        _set_aside(folder, folder)
    else:
        _set_aside(old, folder)
        with contextlib.suppress(FileNotFoundError):
            folder.rename(old)
    making_of(folder, checkpoint).rename(folder)
    sync(folder.parent)


def remove_former(folder: Path) -> None:
    """Deletes FOLDER.old, once all machines have the new checkpoint as FOLDER."""
    _set_aside(old_of(folder), folder)
    sync(folder.parent)
    _delete(folder, "removing")


def _set_aside(place: Path, folder: Path) -> None:
    """Renames whatever is there: to be deleted if it is a checkpoint or empty, else to be kept."""
    if not os.path.lexists(place):
        return
    problem = _problem_with(place)
    kind = "removing" if problem is None else "kept"
    aside = folder.with_name(f"{folder.name}.{kind}-{uuid.uuid4().hex}")
    place.rename(aside)
    if problem is not None:
        logger.warning("%s; a new checkpoint takes its place, and it is kept as %s", problem, aside)


def _problem_with(place: Path) -> str | None:
    try:
        manifest_at(place)
    except CheckpointMismatchError as error:
        empty = place.is_dir() and not any(place.iterdir())
        return None if empty else str(error)
    return None


def _delete(folder: Path, kind: str) -> None:
    for left in folder.parent.glob(f"{glob.escape(folder.name)}.{kind}-*"):
        shutil.rmtree(left, ignore_errors=True)
