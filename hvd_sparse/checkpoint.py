"""A job's checkpoint: a folder that all its ranks fill and read together, whatever the framework.

    FOLDER/shared...                 what all ranks share: one rank of each file system writes it
    FOLDER/rank-3-of-16...           what belongs to rank 3

A folder is complete or not there: it is written under another name, and gets its own when all ranks
are through. It may lie on a file system that all machines share, or on each machine's own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.world import World

POLICIES = ("own", "spread", "reset")


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
        """What fails on one rank fails on all; on the others with an error of this kind."""
        problem: Exception | None = None
        try:
            yield
        except Exception as error:
            problem = error
        told = self.everywhere(None if problem is None else f"{type(problem).__name__}: {problem}")
        if problem is not None:
            raise problem
        for rank, text in enumerate(told):
            if text is not None:
                raise kind(f"rank {rank} could not go on: {text}")

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
        with self.together(OSError):
            own(self._own(making))
            if owns:
                shared(making / "shared")
        with self.together(OSError):
            if owns:
                _put_in_place(making, folder)

    def find(self, folder: str | os.PathLike[str], shared_suffix: str) -> Path | None:
        """The folder to read from; None if no rank finds one.

        Args:
            folder: As it was given to `write`.
            shared_suffix: With this appended, the shared path is a file.
        """
        folder = Path(folder)
        if not folder.exists():
            folder = folder.with_name(f"{folder.name}.old")  # a job died between two renames
        found = self.everywhere((folder / f"shared{shared_suffix}").exists())
        return folder if any(found) else None

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


def _put_in_place(made: Path, folder: Path) -> None:
    old = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(old)
    made.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
