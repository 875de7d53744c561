"""Makes a profile agree with a dense step that was timed."""

from __future__ import annotations

import math
from dataclasses import replace

from hvd_sparse.network import Link
from hvd_sparse.pipeline import simulate_dense
from hvd_sparse.profile import Profile

# How far, as a factor, a few short allreduces may be off what a whole step's take.
LARGEST_FACTOR = 8.0
_HALVINGS = 30


def calibrated(profile: Profile, dense_step: float) -> Profile:
    """The profile whose simulated dense step takes as long as a measured one.

    The network's `dense` was fitted to a few tensors of 4 MB at most, with nothing beside them. A
    step's own allreduces are longer, fused, and share cores and cables with what else goes on.
    Both numbers of the line are scaled alike, by a factor of `LARGEST_FACTOR` at most.

    Args:
        profile: With the network as it was fitted.
        dense_step: Seconds.
    """

    def scaled(factor: float) -> Profile:
        dense = profile.network.dense
        link = Link(alpha=factor * dense.alpha, beta=factor * dense.beta)
        return replace(profile, network=replace(profile.network, dense=link))

    def too_long(factor: float) -> bool:
        return simulate_dense(scaled(factor)).step > dense_step

    # The step does not get shorter with the factor, so halving finds the largest that fits; a
    # shorter step than at 1 asks for one below, a longer one for one above.
    low, high = (1 / LARGEST_FACTOR, 1.0) if too_long(1.0) else (1.0, LARGEST_FACTOR)
    if simulate_dense(scaled(low)).step >= dense_step:
        return scaled(low)
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if too_long(middle):
            high = middle
        else:
            low = middle
    return scaled(low)
