"""A plan as a list of numbers of known length, in which rank 0 sends it to all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from hvd_sparse.buckets import Layer
from hvd_sparse.planning.cost_models import MODELS, WIRES
from hvd_sparse.planning.plan import BucketPlan, Plan
from hvd_sparse.planning.routes import ROUTES

_COLLECTIVES = tuple(sorted(MODELS))
_PER_PLAN = 4
_PER_LAYER = 8


def count_numbers(layers: Sequence[Layer]) -> int:
    """Returns how many numbers a plan for these layers takes."""
    return _PER_PLAN + _PER_LAYER * len(layers)


def to_numbers(plan: Plan, layers: Sequence[Layer]) -> list[float]:
    """Encodes a plan, bit for bit.

    Args:
        plan: The plan, with each layer once.
        layers: The layers, in an order that all ranks know.
    """
    rows: dict[str, list[float]] = {}
    for number, bucket in enumerate(plan.buckets):
        kind = [
            float(_COLLECTIVES.index(bucket.collective)),
            float(WIRES.index(bucket.wire)),
            float(ROUTES.index(bucket.route)),
            bucket.select_seconds,
            bucket.exchange_seconds,
        ]
        for name, density in zip(bucket.layers, bucket.densities, strict=True):
            rows[name] = [float(len(rows)), float(number), density, *kind]
    numbers = [float(plan.size), plan.step_seconds, plan.dense_seconds, plan.compute_seconds]
    return numbers + [number for layer in layers for number in rows[layer.name]]


def from_numbers(numbers: Sequence[float], layers: Sequence[Layer]) -> Plan:
    """Decodes the plan that `to_numbers` was given."""
    size, step, dense, compute = numbers[:_PER_PLAN]
    starts = range(_PER_PLAN, len(numbers), _PER_LAYER)
    rows = [
        (numbers[start : start + _PER_LAYER], layer)
        for start, layer in zip(starts, layers, strict=True)
    ]
    rows.sort(key=lambda row: row[0][0])
    buckets = []
    for _, group in groupby(rows, key=lambda row: row[0][1]):
        members = list(group)
        collective, wire, route, select_seconds, exchange_seconds = members[0][0][3:]
        buckets.append(
            BucketPlan(
                layers=tuple(layer.name for _, layer in members),
                numels=tuple(layer.numel for _, layer in members),
                densities=tuple(row[2] for row, _ in members),
                collective=_COLLECTIVES[int(collective)],
                wire=WIRES[int(wire)],
                route=ROUTES[int(route)],
                select_seconds=select_seconds,
                exchange_seconds=exchange_seconds,
            )
        )
    return Plan(
        buckets=tuple(buckets),
        size=int(size),
        step_seconds=step,
        dense_seconds=dense,
        compute_seconds=compute,
    )
