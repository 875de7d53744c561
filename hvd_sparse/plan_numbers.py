"""A plan as numbers: how rank 0 tells it to all, who know how many numbers to expect."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from hvd_sparse.buckets import Layer
from hvd_sparse.collectives import COLLECTIVES
from hvd_sparse.plan import DENSE, BucketPlan, Plan

_COLLECTIVES = (*COLLECTIVES, DENSE)
_WIRES = ("plain", "packed")
_PER_PLAN = 3
_PER_LAYER = 5


def count_numbers(layers: Sequence[Layer]) -> int:
    """How many numbers a plan for these layers takes."""
    return _PER_PLAN + _PER_LAYER * len(layers)


def to_numbers(plan: Plan, layers: Sequence[Layer]) -> list[float]:
    """The plan, bit for bit.

    Args:
        plan: Takes each layer once.
        layers: In an order that all ranks know.
    """
    rows: dict[str, list[float]] = {}
    for number, bucket in enumerate(plan.buckets):
        kind = [
            float(_COLLECTIVES.index(bucket.collective)),
            float(_WIRES.index(bucket.wire)),
        ]
        for name, density in zip(bucket.layers, bucket.densities, strict=True):
            rows[name] = [float(len(rows)), float(number), density, *kind]
    numbers = [plan.step, plan.dense_step, plan.compute]
    return numbers + [number for layer in layers for number in rows[layer.name]]


def from_numbers(numbers: Sequence[float], layers: Sequence[Layer]) -> Plan:
    """The plan that `to_numbers` was given."""
    step, dense_step, compute = numbers[:_PER_PLAN]
    rows = sorted(
        (numbers[at : at + _PER_LAYER], layer.name)
        for at, layer in zip(range(_PER_PLAN, len(numbers), _PER_LAYER), layers, strict=True)
    )
    buckets = []
    for _, group in groupby(rows, key=lambda row: row[0][1]):
        members = list(group)
        *_, collective, wire = members[0][0]
        buckets.append(
            BucketPlan(
                layers=tuple(name for _, name in members),
                densities=tuple(row[2] for row, _ in members),
                collective=_COLLECTIVES[int(collective)],
                wire=_WIRES[int(wire)],
            )
        )
    return Plan(buckets=tuple(buckets), step=step, dense_step=dense_step, compute=compute)
