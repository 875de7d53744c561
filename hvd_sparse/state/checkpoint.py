"""A job's checkpoint: a folder that all its ranks fill and read together, whatever the framework.

    FOLDER/shared...                 what all ranks share: one rank of each file system writes it
    FOLDER/rank-3-of-16...           what belongs to rank 3
    FOLDER/id                        of this checkpoint, and no other; the same on all file systems

A folder is complete or not there: it is written under another name, and gets its own when all ranks
are through. It may lie on a file system that all machines share, or on each machine's own. There a
job may die when some machines have the new one and some have not; so the former one stays, as
FOLDER.old, until all have, and what is read is what all have.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.ranks.world import World

POLICIES = ("own", "spread", "reset")

_ID = "id"
_SHOWN = 8  # characters of an id in errors

_Ids = Sequence[str | None]  # of FOLDER and FOLDER.old; None: there is none


def checked_policy(residuals: object, policies: Sequence[str] = POLICIES) -> str:
    """What becomes of residuals; raises InvalidArgumentError if it is none of the policies."""
    if residuals in policies:
        return str(residuals)
    raise InvalidArgumentError(f"residuals must be one of {', '.join(policies)}, got {residuals!r}")


class Job:
    """All ranks of the job, as far as checkpoints are concerned. What they do here is collective.

    Args:
        hvd: `horovod.torch` or `horovod.tensorflow`, after `hvd.init()`.

    Attributes:
        rank: This process's.
        size: Number of ranks.
    """

    def __init__(self, hvd: ModuleType) -> None:
        self._world = World.from_horovod(hvd, hvd.global_process_set)
        self.rank, self.size = self._world.rank, self._world.size
        self._is_first_of_node = hvd.local_rank() == 0

    def everywhere(self, thing: Any) -> list[Any]:
        """Every rank's thing."""
        return self._world.allgather_object(thing)

    @contextlib.contextmanager
    def together(self, kind: type[Exception]) -> Iterator[None]:
        """What fails on one rank fails on all of them, with an error of this kind."""
        problem: Exception | None = None
        try:
            yield
        except Exception as error:
            problem = error
        told = self.everywhere(None if problem is None else f"{type(problem).__name__}: {problem}")
        if isinstance(problem, kind):
            raise problem
        for rank, text in enumerate(told):
            if text is not None:
                raise kind(f"rank {rank} could not go on: {text}") from problem

    def write(
        self,
        folder: str | os.PathLike[str],
        *,
        own: Callable[[Path], object],
        shared: Callable[[Path], object],
    ) -> None:
        """Fills a folder, which replaces the one of its name once all ranks are through.

        Args:
            folder: A job that dies meanwhile leaves the former one, as FOLDER or FOLDER.old.
            own: Called by every rank with a path without suffix: writes this rank's file there.
            shared: The same for what all ranks share, on one rank of each file system.

        Raises:
            OSError: On every rank, if one cannot write.
        """
        folder = Path(folder)
        making, owns = self._make(folder)
        mine: _Ids | None = None
        with self.together(OSError):
            own(self._own(making))
            if owns:
                shared(making / "shared")
                mine = _ids_at(folder)
        former = _common([ids for ids in self.everywhere(mine) if ids is not None])
        with self.together(OSError):
            if owns:
                _put_in_place(making, folder, former)
        if owns:
            shutil.rmtree(_old(folder), ignore_errors=True)

    def find(self, folder: str | os.PathLike[str], shared_suffix: str) -> Path | None:
        """The folder that has the same checkpoint on all ranks; None if no rank finds one.

        Args:
            folder: As it was given to `write`.
            shared_suffix: With this appended, the shared path is a file.

        Raises:
            CheckpointMismatchError: On every rank, if the ranks have no checkpoint in common.
        """
        folder = Path(folder)
        places = (folder, _old(folder))
        mine: _Ids = ()
        with self.together(CheckpointMismatchError):
            mine = _ids_at(folder)
            for place, one in zip(places, mine, strict=True):
                if one is None and (place / f"shared{shared_suffix}").exists():
                    raise CheckpointMismatchError(f"{place} is not of this version: it has no id")
        told = self.everywhere(mine)
        if not any(one for ids in told for one in ids):
            return None
        common = _common(told)
        if common is None:
            raise CheckpointMismatchError(
                f"the ranks have no checkpoint '{folder}' in common, nor a former one: "
                f"{_shown(told)}"
            )
        return places[mine.index(common)]

    def own_file(self, folder: Path, suffix: str) -> Path:
        """This rank's file; raises CheckpointMismatchError if it is missing."""
        return existing(Path(f"{self._own(folder)}{suffix}"))

    def _own(self, folder: Path) -> Path:
        return folder / f"rank-{self.rank}-of-{self.size}"

    def _make(self, folder: Path) -> tuple[Path, bool]:
        """A new folder beside `folder`, seen by all ranks; and whether this rank has made it.

        The job's first rank makes it, and the first one of each machine that cannot see that.
        """
        unique = self.everywhere(uuid.uuid4().hex)[0]
        making = folder.with_name(f"{folder.name}.making-{unique}")
        owns = False
        for may in (self.rank == 0, self.rank > 0 and self._is_first_of_node):
            with self.together(OSError):
                if may and not making.exists():
                    for left in folder.parent.glob(f"{folder.name}.making-*"):
                        shutil.rmtree(left, ignore_errors=True)
                    making.mkdir(parents=True)
                    (making / _ID).write_text(unique)
                    owns = True
        return making, owns


def existing(path: Path) -> Path:
    """The path of a file that is there; raises CheckpointMismatchError otherwise."""
    if not path.exists():
        raise CheckpointMismatchError(
            f"{path} is missing: the checkpoint was written by another number of ranks (then "
            'residuals="spread" or "reset" takes it), or lies on another machine'
        )
    return path


def _old(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.old")


def _id_of(place: Path) -> str | None:
    """Of the checkpoint there; None if there is none."""
    try:
        return (place / _ID).read_text()
    except FileNotFoundError:
        return None


def _ids_at(folder: Path) -> _Ids:
    return _id_of(folder), _id_of(_old(folder))


def _common(told: Sequence[_Ids]) -> str | None:
    """The checkpoint that all have, as FOLDER if the first one has it so; None if there is none."""
    return next((one for one in told[0] if one and all(one in ids for ids in told)), None)


def _put_in_place(made: Path, folder: Path, former: str | None) -> None:
    """Gives a new checkpoint its name; the former one, which all ranks have, is FOLDER.old then."""
    old = _old(folder)
    if former is not None and _id_of(old) == former:  # FOLDER is missing, or not all ranks have it
        shutil.rmtree(folder, ignore_errors=True)
    else:
        shutil.rmtree(old, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            folder.rename(old)
    made.rename(folder)


def _shown(told: Sequence[_Ids]) -> str:
    ranks = defaultdict(list)
    for rank, ids in enumerate(told):
        ranks[tuple(one[:_SHOWN] for one in ids if one)].append(str(rank))
    return "; ".join(
        f"rank {', '.join(these)}: {' and '.join(ids) or 'none'}" for ids, these in ranks.items()
    )
