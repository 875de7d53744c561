"""Makes a profile agree with steps that were timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from hvd_sparse.planning.pipeline import simulate, simulate_dense
from hvd_sparse.planning.plan import Plan
from hvd_sparse.planning.profile import Profile

# Largest factor by which a few short allreduces may misjudge those of a whole step.
LARGEST_FACTOR = 8.0
_HALVINGS = 30


def calibrated(profile: Profile, dense_step: float) -> Profile:
    """Returns the profile whose simulated dense step takes as long as a measured one.

    The network's `dense` was fitted to a few tensors of 4 MB at most, with nothing beside them. A
    step's own allreduces are longer, fused, and share cores and cables with other work. Both
    numbers of the line, and of the one in 16 bits, are scaled alike, by a factor of
    `LARGEST_FACTOR` at most.

    Args:
        profile: The profile, with the network as it was fitted.
        dense_step: Measured seconds of a dense step.
    """

    def scaled(logarithm: float) -> Profile:
        network, factor = profile.network, math.exp(logarithm)
        dense16 = network.dense16
        found = replace(
            network,
            dense=network.dense.times(factor, factor),
            dense16=None if dense16 is None else dense16.times(factor, factor),
        )
        return replace(profile, network=found)

    limit = math.log(LARGEST_FACTOR)
    return scaled(_inverse(lambda x: simulate_dense(scaled(x)).step, dense_step, -limit, limit))


def delayed(
    profile: Profile, plan: Plan, sparse_step: float, *, select_on: str = "caller"
) -> Profile:
    """Returns the profile in which a plan's simulated step takes as long as a measured one.

    An exchange begins when the last rank has come to it. Ranks that are out of step or share cores
    therefore delay each exchange by a time that does not depend on its size, and that only a whole
    step shows. It is added to `exchange_overhead`. The step is never made shorter.

    Args:
        profile: The profile that the plan was made from.
        plan: The plan that the steps followed.
        sparse_step: Measured seconds of a step.
        select_on: The thread that selected, "caller" or "engine"; see `simulate`.
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
    """Finds the largest argument in [low, high] at which a rising function is at most `value`.

    Returns `low` if the function is larger everywhere.
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
