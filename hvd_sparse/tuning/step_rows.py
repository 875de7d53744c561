"""What ranks measured in their steps: a row of numbers for each, nan where one does not know."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TypeAlias

from hvd_sparse.buckets import Layer
from hvd_sparse.places.step_clock import StepTimes
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.profile import LayerProfile, Machine, Profile

Rows: TypeAlias = list[list[float]]


def measured_times(times: Sequence[StepTimes], layers: int) -> list[float]:
    """A rank's medians: of the step, of forward, and of when each layer was ready."""
    return [
        median_or_nan([step.step for step in times]),
        median_or_nan([step.forward for step in times]),
        *(median_or_nan([step.ready[layer] for step in times]) for layer in range(layers)),
    ]


def median_or_nan(numbers: Sequence[float]) -> float:
    """Of those that are numbers."""
    known = [number for number in numbers if not math.isnan(number)]
    return statistics.median(known) if known else math.nan


def profile_of(
    rows: Rows,
    layers: Sequence[Layer],
    *,
    network: Network,
    machine: Machine,
    keeps_order: bool = False,
) -> Profile:
    """What the ranks measured, as one profile: a layer is ready when it is on the last rank.

    The sum of the layers' times is so the slowest rank's backward. Each layer's largest time of any
    rank would add up to more: whatever delays one rank once would count.

    Args:
        rows: Of each rank, `measured_times`.
        layers: In the order of these times.
        network: Between the ranks.
        machine: Of the ranks.
        keeps_order: Whether gradients travel in the order of `layers`.

    Returns:
        With the layers in the order in which rank 0's gradients became ready; those of which none
        ever came stand last, and take no time. Or in the order in which they travel: a layer then
        is ready when all before it are, too.
    """
    ready = [row[2:] for row in rows]
    lead = [math.inf if math.isnan(seconds) else seconds for seconds in ready[0]]
    order = list(range(len(layers)))
    if not keeps_order:
        order.sort(key=lambda place: lead[place])
    profiles, before = [], 0.0
    for place in order:
        last = _largest([before, *(seconds[place] for seconds in ready)])
        layer = layers[place]
        profiles.append(LayerProfile(name=layer.name, numel=layer.numel, backward=last - before))
        before = last
    forward = _largest([row[1] for row in rows])
    return Profile(
        layers=tuple(profiles),
        forward=0.0 if math.isnan(forward) else forward,
        network=network,
        machine=machine,
    )


def known(seconds: float) -> float | None:
    """A number, or None for nan."""
    return None if math.isnan(seconds) else seconds


def slowest_step(rows: Rows) -> float:
    """The largest first number of any rank."""
    return _largest([row[0] for row in rows])


def _largest(numbers: Sequence[float]) -> float:
    known = [number for number in numbers if not math.isnan(number)]
    return max(known, default=math.nan)
