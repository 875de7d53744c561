"""Measured times of the ranks' steps: a row of numbers per rank, nan for an unknown one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TypeAlias

from hvd_sparse.compression.buckets import Layer
from hvd_sparse.places.step_clock import StepTimes
from hvd_sparse.planning.network import Network
from hvd_sparse.planning.profile import LayerProfile, Machine, Profile

Rows: TypeAlias = list[list[float]]


def measured_times(times: Sequence[StepTimes], layers: int) -> list[float]:
    """Returns a rank's medians: of the step, of forward, and of each layer's ready time."""
    return [
        median_or_nan([step.step for step in times]),
        median_or_nan([step.forward for step in times]),
        *(median_or_nan([step.ready[layer] for step in times]) for layer in range(layers)),
    ]


def median_or_nan(numbers: Sequence[float]) -> float:
    """Returns the median of the numbers that are not nan, or nan if there are none."""
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
    """Builds one profile from all ranks' times: a layer is ready when it is ready on the last rank.

    The sum of the layers' times is therefore the slowest rank's backward pass. Each layer's largest
    time of any rank would add up to more, because every one-off delay of a rank would count.

    Args:
        rows: `measured_times` of each rank; what follows these is ignored.
        layers: The layers, in the order of these times.
        network: Network between the ranks.
        machine: Machine of the ranks.
        keeps_order: True if gradients are sent in the order of `layers`.

    Returns:
        The profile. Its layers are in the order in which rank 0's gradients became ready; layers
        without any gradient come last and take no time. If `keeps_order`, they are in the given
        order, and a layer is not ready before those in front of it.
    """
    ready = [row[2:] for row in rows]
    lead = [math.inf if math.isnan(seconds) else seconds for seconds in ready[0]]
    order = list(range(len(layers)))
    if not keeps_order:
        order.sort(key=lambda index: lead[index])
    profiles, before = [], 0.0
    for index in order:
        last = _largest([before, *(seconds[index] for seconds in ready)])
        layer = layers[index]
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
    """Returns the number, or None for nan."""
    return None if math.isnan(seconds) else seconds


def slowest_step(rows: Rows) -> float:
    """Returns the largest step time of any rank."""
    return _largest([row[0] for row in rows])


def _largest(numbers: Sequence[float]) -> float:
    known = [number for number in numbers if not math.isnan(number)]
    return max(known, default=math.nan)
