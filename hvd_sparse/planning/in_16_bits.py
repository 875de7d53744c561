"""Dense steps in 16 bits, predicted: by the host's sum and by the core's own."""

from __future__ import annotations

from hvd_sparse.compression import Dense
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.places.buffer import BYTES
from hvd_sparse.planning import costs
from hvd_sparse.planning.pipeline import Stage, simulate, simulate_dense
from hvd_sparse.planning.plan import fixed_choices
from hvd_sparse.planning.profile import Profile


def host_step(profile: Profile) -> float | None:
    """Returns the seconds of a step in which the host sums float16; None if that was not timed."""
    timed = profile.network.dense16
    if timed is None:
        return None
    return simulate_dense(profile, allreduce=timed, value_bytes=BYTES["float16"]).step


def own_step(profile: Profile) -> float | None:
    """Returns the seconds of a step of Dense(values="bfloat16"); None if that was not timed."""
    network, machine = profile.network, profile.machine
    if not machine.knows_dense_sums:
        return None
    numels = {layer.name: layer.numel for layer in profile.layers}
    layers = [Layer(name, numel) for name, numel in numels.items()]
    stages = []
    for choice in fixed_choices(layers, Dense(values="bfloat16")):
        numel = sum(numels[name] for name in choice.layers)
        cost = costs.cost(
            SHARD_SUM,
            k=numel,
            numel=numel,
            network=network,
            machine=machine,
            values=choice.values,
        )
        stages.append(Stage(layers=len(choice.layers), select=0.0, exchange=cost.seconds))
    return simulate(profile, stages).step
