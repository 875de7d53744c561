"""Published ways of selecting about k entries, in the plainest torch: baselines, not this package.

Each is written from its paper's description, with the constants of its authors' release, and keeps
to what torch offers: one call per pass over the data. Each takes u, the residual after error
feedback, and returns the indices of what it would send.

`gaussian`, `sampled` and `top_k` of this package are other methods with the same ideas: they share
no code with these, bound their counts and need fewer passes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import NormalDist

import torch

Method = Callable[[torch.Tensor, int], torch.Tensor]

# GaussianK: masks that are tried, and what a count may be, as multiples of k.
MASKS = 3
FEW, MANY = 2 / 3, 4 / 3

# DGC: the sample, as a share of all entries, and the count from which on the top-k is repeated.
SAMPLE = 0.01
FAR_TOO_MANY = 1.3


def exact_top_k(u: torch.Tensor, k: int) -> torch.Tensor:
    """The k largest magnitudes.

    Reference: Aji and Heafield, Sparse Communication for Distributed Gradient Descent,
    https://arxiv.org/abs/1704.05021
    """
    return torch.topk(u.abs(), k).indices


def gaussian_k(u: torch.Tensor, k: int) -> torch.Tensor:
    """GaussianK: a threshold as if u were normal; halved or raised by half, at most twice.

    Whatever the third mask holds is sent.

    Reference: Shi et al., Understanding Top-k Sparsification in Distributed Deep Learning,
    https://arxiv.org/abs/1911.08772
    """
    density = k / u.numel()
    z = NormalDist().inv_cdf(1 - density / 2)
    threshold = float(u.mean()) + float(u.std()) * z
    magnitudes = u.abs()
    for _ in range(MASKS):
        indices = _beyond(magnitudes, threshold)
        if len(indices) < FEW * k:
            threshold *= 0.5
        elif len(indices) > MANY * k:
            threshold *= 1.5
        else:
            break
    return indices


def dgc(u: torch.Tensor, k: int) -> torch.Tensor:
    """Deep Gradient Compression: the threshold is the smallest of a strided sample's top-k.

    A top-k among those beyond it follows where they are far too many. The sample holds two of the k
    largest at least, as in the authors' release: 1 % of a small layer would hold none.

    Reference: Lin et al., Deep Gradient Compression, https://arxiv.org/abs/1712.01887
    """
    magnitudes = u.abs()
    size = max(SAMPLE * u.numel(), 2 * u.numel() / k)
    stride = max(1, math.floor(u.numel() / size))
    sample = magnitudes[random.randrange(stride) :: stride]
    sample_k = max(1, round(k * len(sample) / u.numel()))
    threshold = float(torch.topk(sample, sample_k).values[-1])
    indices = _beyond(magnitudes, threshold)
    if len(indices) <= FAR_TOO_MANY * k:
        return indices
    return indices[torch.topk(magnitudes[indices], k).indices]


PUBLISHED: dict[str, Method] = {
    "published: exact top-k (torch.topk)": exact_top_k,
    "published: GaussianK": gaussian_k,
    "published: DGC": dgc,
}


def _beyond(magnitudes: torch.Tensor, threshold: float) -> torch.Tensor:
    return (magnitudes > threshold).nonzero().squeeze(1)
