"""Collectives between many ranks of one process, checked against the reference and conservation."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import oracle

from hvd_sparse import _core
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.exchange.array_steps import ArraySteps
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.places.buffer import Buffer


def gradient_of(rank: int, numel: int) -> np.ndarray:
    """Returns integers, so that sums are exact; half of each is the same on every rank."""
    shared = np.random.default_rng(0).standard_normal(numel, dtype=np.float32)
    own = np.random.default_rng(1 + rank).standard_normal(numel, dtype=np.float32)
    return np.rint(1e3 * (shared + own)).astype(np.float32)


def exchange_once(
    collective: str,
    gradients: Sequence[np.ndarray],
    *,
    k: int,
    indices: str = "plain",
    values: str = "float32",
) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """Runs one step between ranks that are threads, one for each gradient.

    Returns the sum, the residual and the bytes sent of each rank.
    """
    size, numel = len(gradients), gradients[0].size
    world = _core.LoopbackWorld(size)

    def run(rank: int) -> tuple[np.ndarray, np.ndarray, int]:
        exchange = Exchange.over_loopback(world, rank)
        try:
            bucket = exchange.add_bucket(
                collective, numels=[numel], segments=[numel], max_ks=[k],
                sparsifier=as_sparsifier("top_k"), collective=collective,
                indices=indices, values=values,
            )  # fmt: skip
            total, residual = gradients[rank].copy(), np.zeros(numel, np.float32)
            states = np.zeros((1, 4), np.float32)
            stats = ArraySteps(exchange, bucket).run(
                [Buffer.of(total)], residual=Buffer.of(residual), states=Buffer.of(states)
            )
            return total, residual, stats.bytes_sent
        finally:
            exchange.close()

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


def is_right(collective: str, size: int, *, numel: int = 2000, k: int = 20) -> bool:
    """Returns true if all ranks have equal bits, nothing is lost and the sum is right."""
    gradients = [gradient_of(rank, numel) for rank in range(size)]
    ranks = exchange_once(collective, gradients, k=k)
    total = ranks[0][0]
    same = all(other.tobytes() == total.tobytes() for other, _, _ in ranks)
    came_in = np.sum(gradients, axis=0, dtype=np.float64)
    is_there = total + np.sum([residual for _, residual, _ in ranks], axis=0, dtype=np.float64)
    right = same and bool(np.array_equal(came_in, is_there))
    return right and bool(np.array_equal(total, oracle.sum_of(collective, gradients, k)))


def bytes_of(collective: str, size: int, *, numel: int, k: int) -> float:
    """Returns the bytes that a rank sends, on average, if all select alone, in packed int4."""
    draws = [np.random.default_rng(rank) for rank in range(size)]
    gradients = [one.standard_normal(numel, dtype=np.float32) for one in draws]
    ranks = exchange_once(collective, gradients, k=k, indices="packed", values="int4")
    return float(np.mean([sent for _, _, sent in ranks]))
