"""Robust averages in plain NumPy, written from the papers: an oracle for the core's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Factor of the bad ranks, and what is added, in the least number of ranks.
LEAST = {
    "median": (2, 1),
    "trimmed_mean": (2, 1),
    "krum": (2, 3),
    "multi_krum": (2, 3),
    "bulyan": (4, 3),
}


def average(
    rule: str, votes: NDArray[np.float64], bad: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Returns a rule's average, and which values lie beyond all that went into it.

    Args:
        rule: Name of the rule.
        votes: The values of each rank, [ranks, numel].
        bad: Number of bad ranks that the rule bears.
    """
    ranks = len(votes)
    if rule in ("krum", "multi_krum"):
        chosen = _best(votes, np.arange(ranks), bad)[: 1 if rule == "krum" else ranks - bad - 2]
        left_out = np.ones(votes.shape, bool)
        left_out[chosen] = False
        return votes[chosen].mean(axis=0), left_out
    left_out = np.zeros(votes.shape, bool)
    candidates = votes
    if rule == "bulyan":
        others = np.arange(ranks)
        for _ in range(ranks - 2 * bad):
            others = np.setdiff1d(others, _best(votes, others, bad)[:1])
        left_out[others] = True
        candidates = np.delete(votes, others, axis=0)
    ascending = np.sort(candidates, axis=0)
    count = len(ascending)
    if rule == "median":
        kept = ascending[(count - 1) // 2 : count // 2 + 1]
    elif rule == "trimmed_mean":
        kept = ascending[bad : count - bad]
    else:
        distances = np.abs(ascending - np.median(ascending, axis=0))
        nearest = distances.argsort(axis=0, kind="stable")[: count - 2 * bad]
        kept = np.take_along_axis(ascending, nearest, axis=0)
    left_out |= (votes < kept.min(axis=0)) | (votes > kept.max(axis=0))
    return kept.mean(axis=0), left_out


def _best(votes: NDArray[np.float64], ranks: NDArray[np.int64], bad: int) -> NDArray[np.int64]:
    """Returns ranks by Krum's score among themselves, the best one first."""
    scores = []
    for rank in ranks:
        others = ranks[ranks != rank]
        distances = np.sort(((votes[others] - votes[rank]) ** 2).sum(axis=1))
        scores.append(distances[: max(1, len(ranks) - bad - 2)].sum())
    return ranks[np.argsort(scores, kind="stable")]
