"""How the gradients of a step are grouped: as they are handed over, and as they are applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hvd_sparse.compression.buckets import Layer
from hvd_sparse.pytorch.slots import Slot


@dataclass(slots=True)
class Handover:
    """Gradients that are handed over at once.

    Attributes:
        slots: Their slots.
        ops: Number of their op; one for each slice of a parameter that is sent in slices; none if
            the host alone takes a gradient.
        layers: The layers of each op.
        has_velocity_alone: True if there is no residual for what a narrow gradient would round
            away of its velocity.
        missing: Number of gradients that have not arrived in this step.
    """

    slots: list[Slot]
    ops: range
    layers: list[Sequence[Layer]]
    has_velocity_alone: bool
    missing: int


class Part(NamedTuple):
    """Gradients of a step that arrive and are applied together.

    Attributes:
        slots: Their slots.
        ops: An op of each of their buckets, or their op; none if the host alone takes part.
        buckets: The exchange's numbers of their buckets: one, or those of a parameter's slices;
            none if they are sent dense.
    """

    slots: list[Slot]
    ops: Sequence[int]
    buckets: Sequence[int]


def handovers_of(
    slots: Mapping[str, Slot], layers_of: Sequence[Sequence[Layer]], *, with_residual: int
) -> list[Handover]:
    """Returns the handovers of a step: those without an op, then the others in order of the ops.

    Args:
        slots: The slots of all parameters, by name.
        layers_of: The layers of each op.
        with_residual: Number of the ops that can be sent sparse, which are the first ones.
    """
    names = {layer.parameter for layers in layers_of for layer in layers}
    handovers = [
        Handover([slot], range(0), [], has_velocity_alone=False, missing=1)
        for name, slot in slots.items()
        if name not in names
    ]
    for op, layers in enumerate(layers_of):
        own = [slots[layer.parameter] for layer in layers]
        last = handovers[-1] if handovers else None
        if last is not None and last.slots == own:
            last.ops = range(last.ops.start, op + 1)
            last.layers.append(layers)
        else:
            ops = range(op, op + 1)
            handovers.append(Handover(own, ops, [layers], op >= with_residual, len(own)))
    return handovers


def parts_of(
    handovers: Sequence[Handover], bucket_of: Mapping[str, int], *, core_takes_part: bool
) -> list[Part]:
    """Returns the parts of a step.

    Args:
        handovers: Its handovers.
        bucket_of: The exchange's number of a layer's bucket, for layers that are sent sparse.
        core_takes_part: True if the core has to commit what is sent dense, too.
    """
    parts: dict[object, Part] = {}
    for handover in handovers:
        buckets: dict[str, list[int]] = {}  # by parameter
        for layer in (layer for layers in handover.layers for layer in layers):
            if layer.name in bucket_of:
                buckets.setdefault(layer.parameter, []).append(bucket_of[layer.name])
        for slot in handover.slots:
            own = buckets.get(slot.name, [])
            key = ("bucket", own[0]) if own else id(handover)
            ops = handover.ops if core_takes_part else range(0)
            parts.setdefault(key, Part([], ops, own)).slots.append(slot)
    return list(parts.values())
