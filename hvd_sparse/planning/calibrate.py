"""Makes a profile agree with steps that were timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from hvd_sparse.planning.network import Link
from hvd_sparse.planning.pipeline import simulate, simulate_dense
from hvd_sparse.planning.plan import Plan
from hvd_sparse.planning.profile import Profile

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

    def scaled(logarithm: float) -> Profile:
        dense, factor = profile.network.dense, math.exp(logarithm)
        link = Link(alpha=factor * dense.alpha, beta=factor * dense.beta)
        return replace(profile, network=replace(profile.network, dense=link))

    limit = math.log(LARGEST_FACTOR)
    return scaled(_inverse(lambda x: simulate_dense(scaled(x)).step, dense_step, -limit, limit))


def delayed(
    profile: Profile, plan: Plan, sparse_step: float, *, select_on: str = "caller"
) -> Profile:
    """The profile in which a plan's simulated step takes as long as a measured one.

    An exchange begins when the last rank has come to it. Ranks that do not keep step, and cores
    that they share, so cost each exchange a time that does not depend on its size, and that only a
    whole step shows: `exchange_overhead` takes it in. The step is never made shorter.

    Args:
        profile: What the plan was made from.
        plan: That the steps followed.
        sparse_step: Seconds.
        select_on: Where the steps' buckets were selected; see `simulate`.
    """
    stages = plan.stages()

    def step(delay: float) -> float:
        late = [
            stage if bucket.dense else replace(stage, exchange=stage.exchange + delay)
            for stage, bucket in zip(stages, plan.buckets, strict=True)
        ]
        return simulate(profile, late, select_on=select_on).step

    machine = profile.machine
    overhead = machine.exchange_overhead + _inverse(step, sparse_step, 0.0, sparse_step)
    return replace(profile, machine=replace(machine, exchange_overhead=overhead))


def _inverse(function: Callable[[float], float], value: float, low: float, high: float) -> float:
    """The largest argument between `low` and `high` at which a rising function is at most `value`.

    `low` where it is larger everywhere.
    """
    if function(high) <= value:
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if function(middle) <= value:
            low = middle
        else:
            high = middle
    return low
