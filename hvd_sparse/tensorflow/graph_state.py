"""The references from a traced function to an exchange: its variables and its driver's number.

They are part of the graph, which outlives the ranks for which it was traced: the exchange of the
next ranks replaces the former one in it by using the same variables and number.
"""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.tensorflow import compat, ops


class GraphState:
    """The graph state of an exchange and of its successors.

    Args:
        prefix: Prefix of the variables' names.

    Attributes:
        number: The driver's number, by which ops find it.
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
        """Returns the variable of that name, created with zeros on the first call."""
        if name not in self._variables:
            self._variables[name] = make_state(shape, f"{self._prefix}/{name}", dtype, device)
        return self._variables[name]


def make_state(
    shape: tuple[int, ...], name: str, dtype: tf.DType = tf.float32, device: str = ops.CPU
) -> tf.Variable:
    """Returns a new variable for an exchange's state, filled with zeros."""
    with tf.device(device):
        return compat.new_variable(tf.zeros(shape, dtype), name.replace(".", "_"))
