"""Makes a step in a graph wait for its input data before it begins.

At the end of the data `next` fails, and TensorFlow cancels all other running ops. Gradients that do
not depend on data, such as noise or the zeros of a missing gradient, would be in flight by then,
and an exchange that is cancelled in the middle of a step ends for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_HANDLES = (tf.resource, tf.variant)


def awaited(gradients: Sequence[Any]) -> list[Any]:
    """Returns the inputs and the data reads of the graph being built; nothing in eager mode.

    All of them belong to that graph. A function's inputs are listed one by one: TensorFlow may
    inline the function into its caller, and then nothing else in it waits for them.

    Args:
        gradients: The gradients to be exchanged, or None. They are left out, so that each starts
            when it is ready, unless one is missing, which would start before all others.
    """
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    missing = any(one is None for one in gradients)
    known = [] if missing else tf.nest.flatten(list(gradients), expand_composites=True)
    spared = {id(one) for one in known}
    inputs = [
        one
        for one in getattr(graph, "inputs", ())  # of a function, or of a branch or loop in one
        if one.dtype not in _HANDLES and id(one) not in spared
    ]
    return inputs + [one for one in graph.get_operations() if "IteratorGetNext" in one.type]
