"""What a traced function knows an exchange by: variables, and the number of its driver.

It is part of the graph, and outlives the ranks for which it was traced: the exchange of the next
ones takes its place by having the same.
"""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.tensorflow import compat, ops


class GraphState:
    """Of an exchange, and of those that follow it.

    Args:
        prefix: Of the variables' names.

    Attributes:
        number: Of the driver, for ops.
    """

    def __init__(self, prefix: str) -> None:
        self.number = ops.next_number()
        self._prefix = prefix
        self._variables: dict[str, tf.Variable] = {}

    def variable(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: tf.DType = tf.float32,
        device: str = ops.CPU,
    ) -> tf.Variable:
        """The variable of that name: of zeros when it is asked for the first time."""
        if name not in self._variables:
            self._variables[name] = make_state(shape, f"{self._prefix}/{name}", dtype, device)
        return self._variables[name]


def make_state(
    shape: tuple[int, ...], name: str, dtype: tf.DType = tf.float32, device: str = ops.CPU
) -> tf.Variable:
    """A variable of an exchange, of zeros."""
    with tf.device(device):
        return compat.new_variable(tf.zeros(shape, dtype), name.replace(".", "_"))
