"""Residuals for another number of ranks: their sum is formed and spread over the new ranks.

The residuals of the new ranks add up to those of the old ones. The part of an entry that float32
cannot hold goes to the rank after the one that takes the entry, so that at most 2^-48 of it is
rounded away, and nothing of a sum of integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_sparse.errors import CheckpointMismatchError
from hvd_sparse.state.checkpoint import RESET, Found, Job, advising
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
        """Adds the saved residuals of a rank.

        Args:
            layers: Elements of each layer that the rank had, by name.
            residuals: Residuals of layers, float32, flat; a missing one is zero.

        Raises:
            CheckpointMismatchError: The rank had other layers.
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
        """Returns the whole sum. Collective.

        Args:
            allreduce: Sums a float64 array over the ranks; the name is the same on all of them.

        Returns:
            The sum of each layer's residuals: float64, flat.
        """
        return {
            name: allreduce(part, f"hvd_sparse.spreading.{name}")
            for name, part in self._parts.items()
        }

    def share(
        self, allreduce: Callable[[NDArray[Any], str], NDArray[Any]], *, rank: int, size: int
    ) -> dict[str, NDArray[Any]]:
        """Returns this rank's part of the sum, whose entries go to the ranks in turn. Collective.

        Args:
            allreduce: Sums a float64 array over the ranks; see `over_ranks`.
            rank: This rank.
            size: Number of ranks, two at least.

        Returns:
            This rank's residual of each layer: float32, flat.
        """
        summed = self.over_ranks(allreduce)
        return {name: share_of(total, rank=rank, size=size) for name, total in summed.items()}


def share_of(total: NDArray[Any], *, rank: int, size: int) -> NDArray[Any]:
    """Returns one rank's part of a sum: one entry in `size`, and the rest of the one before.

    Args:
        total: The sum: float64, flat.
        rank: The rank, in [0, size).
        size: Number of ranks, at least 2.

    Returns:
        The part: float32, flat; zero where other ranks take the entry.
    """
    rounded = total.astype(np.float32)
    rest = (total - rounded).astype(np.float32)
    turn = np.arange(total.size) % size
    return np.select([turn == rank, turn == (rank - 1) % size], [rounded, rest], np.float32(0))


def read_all(job: Job, found: Found, suffix: str, read: Callable[[Path], Any]) -> Any:
    """Reads the files of all ranks that wrote a checkpoint, each on one rank. Collective.

    Args:
        job: The ranks that read, of any number.
        found: The checkpoint, from `Job.find`.
        suffix: Suffix of the ranks' files.
        read: Reads a file; must return the same for all files, or None.

    Returns:
        The result of `read` that is not None, if there is one.

    Raises:
        CheckpointMismatchError: On every rank, if a file is missing or damaged, or does not fit.
    """
    size = found.manifest.ranks
    paths = [found.folder / f"{rank_stem(rank, size)}{suffix}" for rank in range(size)]
    by_rank = job.allgather([rank for rank, path in enumerate(paths) if path.exists()])
    missing = sorted(set(range(size)).difference(*by_rank))
    if size == 0 or missing:
        raise CheckpointMismatchError(
            f"{found.folder} must hold the files of all ranks that saved it, and lacks those of "
            f"ranks {missing or 'unknown'} of {size}. To go on: {RESET}"
        )
    said = None
    with job.fail_together(CheckpointMismatchError), advising():
        for rank in by_rank[job.rank]:
            if min(reader for reader, ranks in enumerate(by_rank) if rank in ranks) == job.rank:
                said = read(found.rank_file(rank, suffix)) or said
    return next((one for one in job.allgather(said) if one is not None), None)
