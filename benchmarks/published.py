"""Published methods of selecting about k entries, in plain torch: baselines, not this package.

Each is written from its paper's description, with the constants of its authors' release, and uses
only torch's operations: one call per pass over the data. Each takes u, the residual after error
feedback, and returns the indices of the entries to send.

`gaussian`, `sampled` and `top_k` of this package are different methods with the same ideas: they
share no code with these, bound their counts and need fewer passes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import NormalDist

import torch

Method = Callable[[torch.Tensor, int], torch.Tensor]

# GaussianK: number of masks tried, and bounds of the count, as multiples of k.
MASKS = 3
FEW, MANY = 2 / 3, 4 / 3

# DGC: the sample, as a share of all entries, and the multiple of k above which top-k is repeated.
SAMPLE = 0.01
FAR_TOO_MANY = 1.3


def exact_top_k(u: torch.Tensor, k: int) -> torch.Tensor:
    """Selects the k largest magnitudes.

    Reference: Aji and Heafield, Sparse Communication for Distributed Gradient Descent,
    https://arxiv.org/abs/1704.05021
    """
    return torch.topk(u.abs(), k).indices


def gaussian_k(u: torch.Tensor, k: int) -> torch.Tensor:
    """GaussianK: a threshold as if u were normal; halved or raised by half, at most twice.

    The third mask's entries are sent, however many.

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

    If far too many entries exceed it, a top-k among them follows. The sample contains at least two
    of the k largest on average, as in the authors' release: 1 % of a small layer would contain
    none.

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
