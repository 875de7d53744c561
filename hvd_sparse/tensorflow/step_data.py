"""What a step in a graph waits for before it begins: the data that it is made of.

At the end of the data `next` fails, and TensorFlow cancels what runs besides. Gradients that depend
on no data, such as those of a missing gradient or of noise, would be on their way by then, and an
exchange that is cancelled amid a step ends for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_HANDLES = (tf.resource, tf.variant)


def awaited(gradients: Sequence[Any]) -> list[Any]:
    """What the graph that is being built is given or reads; nothing in eager mode.

    All of it belongs to that graph. A function's inputs have to be told one by one: TensorFlow may
    merge the function into its caller, and then nothing else in it waits for them.

    Args:
        gradients: That are exchanged, or None. They are not waited for, so that each starts when
            it is ready, unless one is missing, which would start before all others.
    """
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    missing = any(one is None for one in gradients)
    known = [] if missing else tf.nest.flatten(list(gradients), expand_composites=True)
    spared = {id(one) for one in known}
    inputs = [
        one
        for one in getattr(graph, "inputs", ())  # of a function, or of a branch or a loop in one
        if one.dtype not in _HANDLES and id(one) not in spared
    ]
    return inputs + [one for one in graph.get_operations() if "IteratorGetNext" in one.type]
