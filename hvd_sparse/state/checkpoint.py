"""A job's checkpoint: a folder that all its ranks fill and read together, whatever the framework.

    FOLDER/shared...            what all ranks share: one rank of each file system writes it
    FOLDER/rank-3-of-16...      what belongs to rank 3
    FOLDER/shared.manifest      the checkpoint's id, and the digests of the files of that name
    FOLDER/rank-3-of-16.manifest

A folder is complete or absent: it is written under another name, and renamed to its own when the
files of all ranks are on the disk. It may lie on a file system that all machines share, or on each
machine's own. In the latter case a job may die when only some machines have the new checkpoint; so
the former one stays, as FOLDER.old, until all have it, and ranks load the checkpoint that all have.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_sparse.errors import CheckpointMismatchError, HvdSparseError, InvalidArgumentError
from hvd_sparse.log import logger
from hvd_sparse.ranks.agreement import agree_on_call
from hvd_sparse.ranks.world import World
from hvd_sparse.state import checkpoint_folder
from hvd_sparse.state.checkpoint_folder import id_at, making_of, old_of
from hvd_sparse.state.manifest import SHARED, Manifest, checked, manifest_at, rank_stem, seal

POLICIES = ("own", "spread", "reset")

RESET = 'residuals="reset" goes on without them (what was not sent yet is lost)'

_SHOWN = 8  # characters of an id in errors

_Ids = Sequence[str | None]  # of FOLDER and FOLDER.old; None: there is none


def checked_policy(residuals: object, policies: Sequence[str] = POLICIES) -> str:
    """Returns the policy for residuals; raises InvalidArgumentError if it is none of `policies`."""
    if residuals in policies:
        return str(residuals)
    raise InvalidArgumentError(f"residuals must be one of {', '.join(policies)}, got {residuals!r}")


def checked_folder(folder: object) -> Path:
    """Returns the path of a checkpoint; raises InvalidArgumentError if `folder` names none."""
    if isinstance(folder, (str, os.PathLike)) and isinstance(os.fspath(folder), str):
        path = Path(folder)
        if str(folder) and path.name:
            return path
    raise InvalidArgumentError(f"folder must be the path of a folder to write, got {folder!r}")


@contextlib.contextmanager
def advising() -> Iterator[None]:
    """Adds to a refusal of saved residuals, unless it says so itself, how to go on without them."""
    try:
        yield
    except CheckpointMismatchError as error:
        if "residuals=" in str(error):
            raise
        raise CheckpointMismatchError(f"{error}. To go on: {RESET}") from None


@dataclass(frozen=True)
class Found:
    """A checkpoint that all ranks have.

    Attributes:
        folder: Its path on this rank.
        manifest: The manifest of the files that all ranks share.
    """

    folder: Path
    manifest: Manifest

    def shared_file(self, suffix: str) -> Path:
        """Returns a file that all ranks share, after checking that all of these are intact.

        Raises:
            CheckpointMismatchError: Names a file that is missing or damaged.
        """
        return checked(self.folder, self.manifest, SHARED, suffix)

    def rank_file(self, rank: int, suffix: str) -> Path:
        """Returns the file of one of the ranks that saved; raises like `shared_file`."""
        return checked(self.folder, self.manifest, rank_stem(rank, self.manifest.ranks), suffix)


class Job:
    """All ranks of the job, as far as checkpoints are concerned. All methods are collective.

    Args:
        world: The ranks.

    Attributes:
        rank: This process's rank.
        size: Number of ranks.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.rank, self.size = world.rank, world.size
        self._is_first_of_node = world.local_rank == 0

    def allgather(self, value: Any) -> list[Any]:
        """Returns every rank's value."""
        return self._world.allgather_object(value)

    def agree(self, function: str, **arguments: str | int) -> None:
        """Raises InvalidArgumentError, which names both sides, if the ranks' arguments differ."""
        agree_on_call(self._world, range(self.size), function, **arguments)

    @contextlib.contextmanager
    def fail_together(
        self, kind: type[Exception], *, undo: Callable[[], object] | None = None
    ) -> Iterator[None]:
        """Raises on all ranks if the block fails on one of them.

        Args:
            kind: Class of the error that all ranks raise; a rank that fails with another of our own
                errors raises that one.
            undo: Called on every rank before it raises that error.
        """
        problem: Exception | None = None
        try:
            yield
        except Exception as error:
            problem = error
        reports = self.allgather(
            None if problem is None else f"{type(problem).__name__}: {problem}"
        )
        if undo is not None and any(text is not None for text in reports):
            undo()
        if isinstance(problem, (kind, HvdSparseError)):
            raise problem
        for rank, text in enumerate(reports):
            if text is not None:
                raise kind(f"rank {rank} could not go on: {text}") from problem

    def write(
        self,
        folder: str | os.PathLike[str],
        *,
        step: int | None,
        own: Callable[[Path], object],
        shared: Callable[[Path], object],
    ) -> None:
        """Writes a folder, which replaces the one of that name once all ranks have finished.

        Args:
            folder: The checkpoint's path. A job that dies meanwhile leaves the former checkpoint
                there, as FOLDER or FOLDER.old.
            step: Steps that the exchange has made; None if there is no exchange.
            own: Writes this rank's file to a path that lacks a suffix; called on every rank.
            shared: Writes the file that all ranks share; called on one rank per file system.

        Raises:
            OSError: On every rank, if one cannot write, or another job is saving there. The new
                files are deleted.
        """
        folder = Path(folder)
        checkpoint: str = self.allgather(uuid.uuid4().hex)[0]
        with contextlib.ExitStack() as held:
            owns = self._make(folder, checkpoint, held)
            mine: _Ids | None = None
            with self.fail_together(OSError):
                stems = {rank_stem(self.rank, self.size): own}
                if owns:
                    stems[SHARED] = shared
                    mine = _ids_at(folder)
                for name, write in stems.items():
                    stem = making_of(folder, checkpoint) / name
                    with _named_errors(stem):
                        write(stem)
                        seal(stem, checkpoint=checkpoint, step=step, ranks=self.size)
            former = _common([ids for ids in self.allgather(mine) if ids is not None])
            with self.fail_together(OSError):
                if owns:
                    checkpoint_folder.put_in_place(checkpoint, folder, former)
            with self.fail_together(OSError):
                if owns:
                    checkpoint_folder.remove_former(folder)

    def find(self, folder: str | os.PathLike[str]) -> Found | None:
        """Returns the checkpoint that all ranks have; None if no rank has FOLDER or FOLDER.old.

        Args:
            folder: The path that was given to `write`.

        Raises:
            CheckpointMismatchError: On every rank, if one has a checkpoint that is not whole, or
                the ranks have no checkpoint in common.
        """
        folders = (Path(folder), old_of(Path(folder)))
        inspected = [_inspect(one) for one in folders]
        manifests, problems = [one for one, _ in inspected], [problem for _, problem in inspected]
        mine = [None if one is None else one.checkpoint for one in manifests]
        reports = self.allgather([mine, problems])
        common = _common([ids for ids, _ in reports])
        _refuse_damaged([said for _, said in reports], Path(folder), common)
        if common is None:
            if not any(one for ids, _ in reports for one in ids):
                return None
            raise CheckpointMismatchError(
                f"the ranks have no checkpoint '{folder}' in common, nor a former one: "
                f"{_shown([ids for ids, _ in reports])}"
            )
        index = mine.index(common)
        manifest = manifests[index]
        assert manifest is not None
        found = Found(folders[index], manifest)
        if manifest.files is None and self.rank == 0:
            logger.warning(
                "%s was saved by a version that kept no digests: damage to its files may not be "
                "noticed",
                found.folder,
            )
        return found

    def own_file(self, found: Found, suffix: str) -> Path:
        """Returns this rank's file; raises CheckpointMismatchError if damaged or of other ranks."""
        if found.manifest.ranks != self.size:
            raise CheckpointMismatchError(
                f"{found.folder} was saved by {found.manifest.ranks} ranks, and there are "
                f'{self.size} now: residuals="spread" or "reset" takes it'
            )
        return found.rank_file(self.rank, suffix)

    def _make(self, folder: Path, checkpoint: str, held: contextlib.ExitStack) -> bool:
        """Makes a new folder beside `folder` for all ranks; returns true if this rank made it.

        The job's first rank makes it, and so does the first rank of each machine that cannot see
        that one. A rank that made it holds FOLDER's lock until `held` is closed.
        """
        owns = False
        for may in (self.rank == 0, self.rank > 0 and self._is_first_of_node):
            with self.fail_together(OSError):
                if may and not making_of(folder, checkpoint).exists():
                    held.enter_context(checkpoint_folder.making(folder, checkpoint))
                    owns = True
        return owns


@contextlib.contextmanager
def _named_errors(stem: Path) -> Iterator[None]:
    """Turns any error into an OSError that names the path."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__  # frameworks hide the system's error
        if cause is None or cause.errno is None:
            raise OSError(f"{stem} cannot be written: {error}") from error
        raise OSError(cause.errno, cause.strerror, str(cause.filename or stem)) from error


def _inspect(folder: Path) -> tuple[Manifest | None, str | None]:
    """Returns the manifest of the checkpoint that is there, or what is wrong with it."""
    try:
        return manifest_at(folder), None
    except CheckpointMismatchError as error:
        return None, str(error)


def _ids_at(folder: Path) -> _Ids:
    return [id_at(folder), id_at(old_of(folder))]


def _common(reports: Sequence[_Ids]) -> str | None:
    """Returns the id that all ranks have, preferably as rank 0's FOLDER; None if there is none."""
    return next((one for one in reports[0] if one and all(one in ids for ids in reports)), None)


def _refuse_damaged(
    reports: Sequence[Sequence[str | None]], folder: Path, common: str | None
) -> None:
    """Raises CheckpointMismatchError if a rank has a checkpoint that is not whole.

    Args:
        reports: By rank, the problems of FOLDER and of FOLDER.old.
        folder: FOLDER.
        common: The checkpoint that all ranks have. If there is one, a damaged FOLDER.old is let
            pass, since it is older; a damaged FOLDER is not, since it may have been newer.
    """
    for rank, problems in enumerate(reports):
        damaged = next((one for one in problems[: 1 if common else 2] if one), None)
        if damaged is not None:
            raise CheckpointMismatchError(
                f"rank {rank} has a checkpoint that is not whole: {damaged}"
                + (f". All ranks have a former one: move {folder} away to load it" * bool(common))
            )


def _shown(reports: Sequence[_Ids]) -> str:
    ranks = defaultdict(list)
    for rank, ids in enumerate(reports):
        ranks[tuple(one[:_SHOWN] for one in ids if one)].append(str(rank))
    return "; ".join(
        f"rank {', '.join(these)}: {' and '.join(ids) or 'none'}" for ids, these in ranks.items()
    )
