"""Residuals for another number of ranks: their sum is formed and shared out.

What was owed is owed still: the residuals of the new ranks add up to those of the old ones. What
float32 cannot hold of an entry goes to the rank after the one that takes it, so that no more than
2^-48 of it is rounded away, and nothing of a sum of integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_sparse.errors import CheckpointMismatchError
from hvd_sparse.state.checkpoint import Found, Job
from hvd_sparse.state.manifest import rank_stem


class SavedSum:
    """The sum of all saved residuals, of which every rank forms a part.

    Args:
        layers: Elements of each layer, by name.
    """

    def __init__(self, layers: Mapping[str, int]) -> None:
        self._layers = dict(layers)
        self._parts = {name: np.zeros(numel) for name, numel in layers.items()}

    def add(self, layers: Mapping[str, int], residuals: Mapping[str, NDArray[Any]]) -> None:
        """Adds the residuals of a rank that was saved.

        Args:
            layers: Those that it had.
            residuals: Of those of them that were not zero: float32, flat.

        Raises:
            CheckpointMismatchError: It had other layers.
        """
        if dict(layers) != self._layers:
            raise CheckpointMismatchError(
                f"the residuals were saved for other layers: saved are {dict(layers)}, here are "
                f"{self._layers}"
            )
        for name, residual in residuals.items():
            self._parts[name] += residual

    def over_ranks(
        self, allreduce: Callable[[NDArray[Any], str], NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        """The whole sum. Collective.

        Args:
            allreduce: Sums a float64 array over the ranks; the name is the same on all of them.

        Returns:
            float64, flat, by layer.
        """
        return {
            name: allreduce(part, f"hvd_sparse.spreading.{name}")
            for name, part in self._parts.items()
        }

    def share(
        self, allreduce: Callable[[NDArray[Any], str], NDArray[Any]], *, rank: int, size: int
    ) -> dict[str, NDArray[Any]]:
        """This rank's part: entry by entry the sum goes to one rank after the other. Collective.

        Args:
            allreduce: As in `over_ranks`.
            rank: This one.
            size: Number of ranks, two at least.

        Returns:
            float32, flat, by layer.
        """
        summed = self.over_ranks(allreduce)
        return {name: share_of(total, rank=rank, size=size) for name, total in summed.items()}


def share_of(total: NDArray[Any], *, rank: int, size: int) -> NDArray[Any]:
    """What one rank takes of a sum: one entry in `size`, and the rest of the one after.

    Args:
        total: float64, flat.
        rank: In [0, size).
        size: At least 2.

    Returns:
        float32, flat; zero where other ranks take the entry.
    """
    rounded = total.astype(np.float32)
    rest = (total - rounded).astype(np.float32)
    turn = np.arange(total.size) % size
    return np.select([turn == rank, turn == (rank - 1) % size], [rounded, rest], np.float32(0))


def read_all(job: Job, found: Found, suffix: str, read: Callable[[Path], Any]) -> Any:
    """Lets the files of all ranks that wrote a checkpoint be read, each by one rank. Collective.

    Args:
        job: Of any size.
        found: From `Job.find`.
        suffix: Of the ranks' files.
        read: Takes up a file; what it returns must be the same for all files, or None.

    Returns:
        What `read` returned, if not None.

    Raises:
        CheckpointMismatchError: On every rank, if a file is missing or damaged, or does not fit.
    """
    size = found.manifest.ranks
    paths = [found.folder / f"{rank_stem(rank, size)}{suffix}" for rank in range(size)]
    by_rank = job.everywhere([rank for rank, path in enumerate(paths) if path.exists()])
    missing = sorted(set(range(size)).difference(*by_rank))
    if size == 0 or missing:
        raise CheckpointMismatchError(
            f"{found.folder} must hold the files of all ranks that saved it, and lacks those of "
            f"ranks {missing or 'unknown'} of {size}"
        )
    said = None
    with job.together(CheckpointMismatchError):
        for rank in by_rank[job.rank]:
            if min(reader for reader, ranks in enumerate(by_rank) if rank in ranks) == job.rank:
                said = read(found.rank_file(rank, suffix)) or said
    return next((one for one in job.everywhere(said) if one is not None), None)
