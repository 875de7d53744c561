"""Several backward passes per step: each rank sums its gradients before they are exchanged."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.tensorflow import compat, step_data

_all: weakref.WeakSet[Accumulation] = weakref.WeakSet()


def refuse_amid_passes() -> None:
    """Raises InvalidArgumentError if gradients have been added up but not exchanged."""
    if any(one.under_way for one in _all):
        raise InvalidArgumentError(
            "an elastic state must be committed after an exchange, and backward_passes_per_step "
            "has added up gradients that were not exchanged yet"
        )


def empty_all() -> None:
    """Clears all sums between two passes of a step; its passes will be repeated."""
    for one in _all:
        one.empty()


class Accumulation:
    """Sums of the gradients of one optimizer.

    Args:
        passes: Backward passes per step, at least 2.
        averages: True if a step's gradient is the average over the passes; otherwise the sum.

    Raises:
        InvalidArgumentError: `passes` is not an integer above 1.
    """

    def __init__(self, passes: int, *, averages: bool) -> None:
        if isinstance(passes, bool) or not isinstance(passes, int) or passes < 2:
            raise InvalidArgumentError(
                f"backward_passes_per_step must be an integer of at least 1, got {passes!r}"
            )
        self._passes = passes
        self._averages = averages
        self._sums: list[tf.Variable] = []
        self._index_of: dict[int, int] = {}  # index of a variable's sum, by the variable's id
        self._alive: list[weakref.ref[Any]] = []
        self._count: tf.Variable | None = None
        _all.add(self)

    @property
    def under_way(self) -> bool:
        """True if gradients have been added up but not exchanged yet."""
        return self._count is not None and int(self._count.numpy()) % self._passes != 0

    def empty(self) -> None:
        """Clears the sums and restarts at the first pass."""
        if self._count is not None:
            self._count.assign(0)
            for one in self._sums:
                one.assign(tf.zeros_like(one))

    def step(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        apply: Callable[[list[Any]], object],
    ) -> None:
        """Adds gradients; calls `apply` with the sums in the last pass of each step.

        Args:
            gradients: One gradient per variable, or None. IndexedSlices become tensors.
            variables: The variables, which must be the same in all passes, in any order.
            apply: A function that exchanges the sums and updates the variables.

        Raises:
            UnsupportedError: The variables differ from those of earlier passes.
        """
        if self._count is None:
            with tf.init_scope():
                self._build(variables)
        assert self._count is not None
        sums = self._sums_of(variables)
        # Ops in the branch do not see this graph's data, so it is awaited here.
        with tf.control_dependencies(step_data.awaited(gradients)):
            added = [
                one.assign_add(tf.convert_to_tensor(gradient))
                for one, gradient in zip(sums, gradients, strict=True)
                if gradient is not None
            ]
            with tf.control_dependencies(added):
                due = self._count.assign_add(1) % self._passes == 0

        def apply_sums() -> tf.Tensor:
            share = 1 / self._passes if self._averages else 1
            totals = [one.read_value() * tf.cast(share, one.dtype) for one in sums]
            with tf.control_dependencies(totals):
                emptied = [one.assign(tf.zeros_like(one)) for one in sums]
            with tf.control_dependencies(emptied):
                apply(totals)
            return tf.constant(True)

        tf.cond(due, apply_sums, lambda: tf.constant(False))

    def _sums_of(self, variables: Sequence[Any]) -> list[tf.Variable]:
        """Returns the variables' sums, in order; raises UnsupportedError for other variables."""
        ids = [id(compat.tensor_of(variable)) for variable in variables]
        dead = any(alive() is None for alive in self._alive)
        if dead or len(ids) != len(self._sums) or set(ids) != self._index_of.keys():
            raise UnsupportedError(
                "with backward_passes_per_step all passes must be over the same variables"
            )
        return [self._sums[self._index_of[one]] for one in ids]

    def _build(self, variables: Sequence[Any]) -> None:
        self._count = compat.new_variable(tf.zeros((), tf.int64))
        self._sums = [
            compat.new_variable(tf.zeros(one.shape, compat.dtype_of(one))) for one in variables
        ]
        known = [compat.tensor_of(variable) for variable in variables]
        self._alive = [weakref.ref(one) for one in known]
        self._index_of = {id(one): index for index, one in enumerate(known)}
