"""Predicts the step of each method of a table by the cost model, for comparison with measurements.

A tuned LAGS has measured the network, the machine and the model while it ran. From that profile the
step of every other method can be simulated, too: a pinned compression sends its fixed buckets.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from modes import compression_of

from hvd_sparse.compression import Compression
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.planning import costs
from hvd_sparse.planning.pipeline import Stage, simulate, simulate_dense
from hvd_sparse.planning.plan import entries_to_send, fixed_choices
from hvd_sparse.planning.profile import Profile

MEDIAN_GOAL = 0.20


def predicted_step(profile: Profile, compression: Compression) -> float:
    """Returns the seconds of a step with a compression that is not adaptive.

    Args:
        profile: Profile measured by a tuner.
        compression: A compression whose buckets and densities are fixed.
    """
    numel = {layer.name: layer.numel for layer in profile.layers}
    stages = []
    layers = [Layer(layer.name, layer.numel) for layer in profile.layers]
    for choice in fixed_choices(layers, compression):
        entries = sum(numel[name] for name in choice.layers)
        layer_wise = compression.layers.layer_wise
        units = [numel[name] for name in choice.layers] if layer_wise else [entries]
        exchange = costs.cost(
            choice.collective,
            k=sum(entries_to_send(unit, compression.density) for unit in units),
            numel=entries,
            network=profile.network,
            machine=profile.machine,
            wire=choice.wire,
            values=choice.values,
            collective_options=compression.collective_options,
        )
        is_dense = choice.collective == SHARD_SUM
        select = exchange.taking if is_dense else profile.machine.select_seconds(entries)
        rest = exchange.seconds - exchange.taking
        stages.append(Stage(layers=len(choice.layers), select=select, exchange=rest))
    return simulate(profile, stages).step


def predictions(settling: Mapping[str, Any], modes: Sequence[str]) -> dict[str, float]:
    """Returns the predicted seconds of a step by mode.

    Args:
        settling: Settling of an adaptive mode, as written by a replay.
        modes: Modes of replay.py; any adaptive one is that of `settling`.
    """
    profile = Profile.from_json(json.dumps(settling["profile"]))
    planned = settling["predicted"]
    seconds = {}
    for mode in modes:
        if mode == "compute":
            seconds[mode] = profile.compute
        elif mode == "dense":
            seconds[mode] = simulate_dense(profile).step
        elif (compression := compression_of(mode)).adaptive:
            seconds[mode] = planned["sparse" if settling["sparse"] else "dense"]
        else:
            seconds[mode] = predicted_step(profile, compression)
    return seconds


def relative_errors(
    predicted: Mapping[str, float], measured: Mapping[str, float]
) -> dict[str, float]:
    """Returns predicted over measured, minus 1, for each predicted method."""
    return {method: seconds / measured[method] - 1 for method, seconds in predicted.items()}


def median_error(errors: Sequence[float]) -> float:
    """Returns the median of the errors' magnitudes; NaN if there are none."""
    return statistics.median(abs(error) for error in errors) if errors else float("nan")
