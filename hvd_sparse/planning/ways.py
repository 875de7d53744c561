"""Ways to train a model on a network, side by side: time and bytes of a step, and time to a loss.

Nothing is measured but what the network and the machine say: seconds of computing are given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hvd_sparse.compression import LAGS
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.planning import costs
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.over_time import Observed, PlannerOverTime
from hvd_sparse.planning.pipeline import simulate_dense
from hvd_sparse.planning.plan import BucketChoice, entries_to_send
from hvd_sparse.planning.planner import make_plan, rules_of
from hvd_sparse.planning.profile import LayerProfile, Machine, Profile

# Steps to a loss, over those of dense: docs/learning.md, "Under AdamW", 2,000 steps, three seeds.
LAGS_STEPS, POWER_SGD_STEPS = 1.02, 1.30
POWER_SGD_RANK = 4
ACCUMULATED = 4  # batches
BACKWARD_SHARE = 2 / 3  # of the seconds of computing


@dataclass(frozen=True)
class Tensor:
    """A parameter: its name and its shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of its entries."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Way:
    """One way to train, with its predictions.

    Attributes:
        name: Its name, as a user would write it.
        step_seconds: Seconds of a step of one batch.
        bytes: Bytes that a rank sends for such a step.
        steps: Steps to a loss, over those of dense; None: not known.
        slowdown: Seconds to a loss, over those of computing alone; None: not known.
    """

    name: str
    step_seconds: float
    bytes: float
    steps: float | None
    slowdown: float | None


def profile_of(
    tensors: Sequence[Tensor], step_seconds: float, network: Network, machine: Machine
) -> Profile:
    """Returns the profile of a model whose passes were not timed.

    Args:
        tensors: Its parameters, in the order in which the model was built.
        step_seconds: Seconds of a step that exchanges nothing, of which backward takes two thirds,
            for each entry as much.
        network: The network between the ranks.
        machine: The machine of each rank.
    """
    numel = sum(one.numel for one in tensors)
    per_entry = BACKWARD_SHARE * step_seconds / numel
    layers = [
        LayerProfile(name=one.name, numel=one.numel, backward=per_entry * one.numel)
        for one in reversed(tensors)
    ]
    forward = (1 - BACKWARD_SHARE) * step_seconds
    return Profile(layers=tuple(layers), forward=forward, network=network, machine=machine)


def compared(profile: Profile, tensors: Sequence[Tensor]) -> list[Way]:
    """Returns the ways for a profile from `profile_of`, computing alone first.

    PowerSGD's own computing, and the small tensors that LAGS leaves to the host, are not counted.
    """
    ring = 2 * (profile.network.size - 1) / profile.network.size
    wide, narrow = (simulate_dense(profile, value_bytes=width).step for width in (4, 2))
    accumulated = (narrow + (ACCUMULATED - 1) * profile.compute) / ACCUMULATED
    factors = _factors(profile, {one.name: one.shape for one in tensors})
    predicted: list[tuple[str, float, float, float | None]] = [
        ("computing alone", profile.compute, 0.0, 1.0),
        ("DDP", wide, 4 * ring * profile.numel, 1.0),
        ("DDP, bf16_compress_hook", narrow, 2 * ring * profile.numel, 1.0),
        (
            f"the same, {ACCUMULATED} batches accumulated",
            accumulated,
            2 * ring * profile.numel / ACCUMULATED,
            None,
        ),
        (
            f"DDP, PowerSGD of rank {POWER_SGD_RANK}",
            simulate_dense(factors).step,
            4 * ring * factors.numel,
            POWER_SGD_STEPS,
        ),
    ]
    taken = {one.name for one in tensors if LAGS().takes(one.shape)}
    if taken:
        large = replace(
            profile,
            forward=profile.compute
            - sum(one.backward for one in profile.layers if one.name in taken),
            layers=tuple(one for one in profile.layers if one.name in taken),
        )
        predicted += [_lags(large), _over_time(large)]
    return [
        Way(name, seconds, nbytes, steps, steps and steps * seconds / profile.compute)
        for name, seconds, nbytes, steps in predicted
    ]


def _factors(profile: Profile, shapes: dict[str, tuple[int, ...]]) -> Profile:
    """Returns the profile of what PowerSGD sends: two factors of each matrix, if that is less."""
    layers = []
    for layer in profile.layers:
        rows = shapes[layer.name][0] if len(shapes[layer.name]) > 1 else 0
        both = POWER_SGD_RANK * (rows + layer.numel // rows) if rows else layer.numel
        layers.append(replace(layer, numel=min(both, layer.numel)))
    return replace(profile, layers=tuple(layers))


def _lags(profile: Profile) -> tuple[str, float, float, float]:
    """Returns what bare LAGS is predicted to take after its warm-up."""
    plan = make_plan(profile, rules_of(LAGS()))
    sent = sum(_bytes(one, one.k, one.numel, profile) for one in plan.buckets)
    return "LAGS", plan.step_seconds, sent, 1.0 if plan.dense else LAGS_STEPS


def _over_time(profile: Profile) -> tuple[str, float, float, float]:
    """Returns what LAGS with local steps is predicted to take."""
    numels = {one.name: one.numel for one in profile.layers}
    layers = [Layer(name, numel) for name, numel in numels.items()]
    planner = PlannerOverTime(
        layers,
        LAGS(local_steps="auto"),
        network=profile.network,
        machine=profile.machine,
    )
    plan = planner.best(Observed(compute=profile.compute))
    sent = 0.0
    for bucket in plan.choices(layers):
        numel = sum(numels[name] for name in bucket.layers)
        k = sum(
            entries_to_send(numels[name], density)
            for name, density in zip(bucket.layers, bucket.densities, strict=True)
        )
        sent += _bytes(bucket, k, numel, profile)
    sent /= plan.local_steps.first
    return 'LAGS(local_steps="auto")', plan.step_seconds, sent, plan.steps


def _bytes(bucket: BucketChoice, k: int, numel: int, profile: Profile) -> float:
    """Returns the bytes that the busiest rank sends for a bucket."""
    return costs.cost(
        bucket.collective,
        k=k,
        numel=numel,
        network=profile.network,
        machine=profile.machine,
        wire=bucket.wire,
        values=bucket.values,
        nodes_first=bucket.nodes_first,
    ).bytes
