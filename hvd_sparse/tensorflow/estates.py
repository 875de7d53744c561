"""What exchanges of some variables leave to the next one that has some of these, too.

Such as a new head on the same backbone: what this rank has yet to send of the backbone, and its
velocity, go on with it. An exchange that has ended waits here as long as any of its variables
lives, and so does the optimizer that owned it. All of this is each rank's own affair: ranks need
not let go of a variable at the same time.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.renewal import Renewal


class Estate:
    """An exchange that has ended with one of its variables, for those that live on.

    Args:
        renewal: Of the exchange; given up.
        owner: None where nobody but the variables owns it.
        variables: All of them, by weak references, in the order of their gradients.

    Attributes:
        watches: Over variables that live on, for as long as this is kept.
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
        """Of the variables, None for those that died; all of them if nobody may take it over."""
        found = [variable() for variable in self._variables]
        gone = self._owner is not None and self._owner() is None
        return tuple(None if gone or one is None else id(one) for one in found)

    def lives(self) -> bool:
        """Whether somebody may take it over."""
        return any(self.ids)

    def owes(self) -> bool:
        """Whether something is left of those that live."""
        giver = self.renewal.holder
        if giver is None:
            return False
        names = [name for name, number in zip(giver.saved_names, self.ids, strict=True) if number]
        held = (giver.residuals(), giver.velocities())
        return any(np.any(parts[name]) for parts in held for name in names if name in parts)


def take_over(
    heir: GradientExchange,
    ids: Sequence[int],
    givers: Iterable[tuple[Renewal, Sequence[int | None]]],
) -> None:
    """Moves to a new exchange what others hold of its variables, on this rank.

    Args:
        heir: That has taken no step yet.
        ids: Of its variables.
        givers: Exchanges with the same options, between two steps or ended; and the ids of their
            variables, None for those that died.
    """
    own = dict(zip(ids, heir.saved_names, strict=True))
    residuals: dict[str, NDArray[Any]] = {}
    velocities: dict[str, NDArray[Any]] = {}
    rate = 0.0
    for renewal, theirs in givers:
        giver = renewal.holder
        if giver is None:
            continue
        pairs = zip(theirs, giver.saved_names, strict=True)
        names = {name: own[number] for number, name in pairs if number in own}
        rate = rate or giver.rate
        # In units of the learning rate that they were accumulated at.
        factor = np.float32(giver.rate / rate if giver.rate and rate else 1)
        _move(giver.residuals(), names, heir.residuals(), residuals, factor)
        _move(giver.velocities(), names, heir.velocities(), velocities, np.float32(1))
        giver.let_go(names)
    if residuals or velocities:
        heir.load(residuals, {}, velocities, step=0, rate=rate)


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
