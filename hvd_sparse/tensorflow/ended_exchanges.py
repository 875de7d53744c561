"""Hands residuals and velocities from exchanges to a new one that shares variables with them.

An example is a new head on the same backbone, whose residual and velocity are kept. An exchange
that has ended is kept here while any of its variables lives, and the optimizer that owned it, if
any. All of this is local to a rank: ranks need not release a variable at the same time.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.renewal import Renewal


class EndedExchange:
    """An exchange that ended when one of its variables died, kept for the remaining variables.

    Args:
        renewal: The renewal of the exchange, already given up.
        owner: The optimizer that owned the exchange; None if there was none.
        variables: Weak references to all variables, in the order of their gradients.

    Attributes:
        renewal: The renewal of the exchange.
        watches: Finalizers of the remaining variables, active while this object is kept.
    """

    def __init__(
        self,
        renewal: Renewal,
        owner: weakref.ref[Any] | None,
        variables: Sequence[weakref.ref[Any]],
    ) -> None:
        self.renewal = renewal
        self.watches: list[weakref.finalize[..., Any]] = []
        self._owner = owner
        self._variables = variables

    @property
    def ids(self) -> tuple[int | None, ...]:
        """The variables' ids, None for a dead one; all None once the owner is dead."""
        found = [variable() for variable in self._variables]
        gone = self._owner is not None and self._owner() is None
        return tuple(None if gone or one is None else id(one) for one in found)

    def can_be_taken_over(self) -> bool:
        """Returns true if another exchange may still take over its state."""
        return any(self.ids)

    def has_state(self) -> bool:
        """Returns true if the state of a living variable is not all zero."""
        contributor = self.renewal.holder
        if contributor is None:
            return False
        names = [
            name for name, number in zip(contributor.saved_names, self.ids, strict=True) if number
        ]
        held = (contributor.residuals(), contributor.velocities())
        return any(np.any(parts[name]) for parts in held for name in names if name in parts)


def take_over(
    successor: GradientExchange,
    ids: Sequence[int],
    contributors: Iterable[tuple[Renewal, Sequence[int | None]]],
) -> None:
    """Moves this rank's state of a new exchange's variables out of the exchanges that hold it.

    Args:
        successor: The new exchange, before its first step.
        ids: The ids of its variables.
        contributors: Exchanges with the same options, between two steps or ended, each with the
            ids of its variables, None for a dead one.
    """
    own = dict(zip(ids, successor.saved_names, strict=True))
    residuals: dict[str, NDArray[Any]] = {}
    velocities: dict[str, NDArray[Any]] = {}
    rate = 0.0
    for renewal, theirs in contributors:
        contributor = renewal.holder
        if contributor is None:
            continue
        pairs = zip(theirs, contributor.saved_names, strict=True)
        names = {name: own[number] for number, name in pairs if number in own}
        rate = rate or contributor.rate
        # Residuals are in units of the learning rate at which they were accumulated.
        factor = np.float32(contributor.rate / rate if contributor.rate and rate else 1)
        _move(contributor.residuals(), names, successor.residuals(), residuals, factor)
        _move(contributor.velocities(), names, successor.velocities(), velocities, np.float32(1))
        contributor.forget(names)
    if residuals or velocities:
        successor.load(residuals, {}, velocities, step=0, rate=rate)


def _move(
    held: Mapping[str, Any],
    names: Mapping[str, str],
    wanted: Mapping[str, Any],
    moved: dict[str, NDArray[Any]],
    factor: np.float32,
) -> None:
    for theirs, ours in names.items():
        if theirs in held and ours in wanted:
            part = factor * held[theirs].numpy()
            moved[ours] = moved[ours] + part if ours in moved else part
