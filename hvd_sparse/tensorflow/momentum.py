"""The momentum of a Keras 3 optimizer, which each rank applies before error feedback instead.

hvd_sparse/pytorch/momentum.py says why, and what a velocity is. Keras compiles the momentum of an
optimizer into its graph, so here it is read once, when the optimizer becomes a distributed one.
Gradients of one optimizer may differ: those of local variables, and IndexedSlices that Horovod
gathers, have no velocity. So the optimizer's own momentum is 0 only while a variable is updated
whose gradient has one. Velocities go on where the momentum is that the optimizer has at the first
step of an exchange, loaded or from training without it.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.tensorflow import compat


@dataclass(frozen=True)
class _Form:
    """The form in which a class of optimizers has a momentum.

    Attributes:
        setting: Name of the momentum.
        own: Name of the attribute with the optimizer's own momentum of each variable.
        hidden: Attributes that are 0 without it.
        adds_up: True if gradients are added up, so that a velocity is 1 / (1 - momentum) times as
            large as a gradient. Then the velocity of a delivered entry stays.
    """

    setting: str
    own: str
    hidden: tuple[str, ...]
    adds_up: bool = False


# By the name of Keras's class (AdamW is an Adam). All others keep theirs, also if they have a
# `beta_1`.
_FORMS = {
    "Adam": _Form("beta_1", "_momentums", ("beta_1",)),
    "Adamax": _Form("beta_1", "_m", ("beta_1",)),
    "Nadam": _Form("beta_1", "_momentums", ("beta_1", "_u_product")),
    "SGD": _Form("momentum", "momentums", ("momentum",), adds_up=True),
}
_HOME = "keras.src.optimizers."


def momentum_to_move(optimizer: Any) -> float:
    """Returns the momentum of an optimizer that can be moved; 0 if it has none, or keeps it.

    With Keras's gradient_accumulation_steps, which exchanges more often than it steps, an optimizer
    keeps it: a velocity would decay with every exchange.
    """
    form = _form_of(optimizer)
    if form is None or getattr(optimizer, "gradient_accumulation_steps", None):
        return 0.0
    value = getattr(optimizer, form.setting)
    momentum = float(value) if isinstance(value, numbers.Real) else 0.0
    return momentum if 0 < momentum < 1 else 0.0


def masks_velocity(optimizer: Any) -> bool:
    """Returns true if the velocity of a delivered entry becomes 0 where the momentum is moved."""
    form = _form_of(optimizer)
    return form is None or not form.adds_up


def refuse_another(optimizer: Any, moved: float) -> None:
    """Raises InvalidArgumentError unless an optimizer has the momentum that was moved."""
    form = _form_of(optimizer)
    assert form is not None
    momentum = getattr(optimizer, form.setting)
    if momentum != moved:
        raise InvalidArgumentError(
            f"{form.setting} of {type(optimizer).__name__} is {momentum} and was {moved} when the "
            "exchange took it over: create the optimizer with it, or set "
            "Feedback(momentum='keep') to leave it to the optimizer"
        )


def own_momenta(optimizer: Any, variables: Sequence[Any]) -> list[NDArray[Any] | None]:
    """Returns the velocities that go on where an optimizer's own momentum is, outside of any graph.

    Args:
        optimizer: An optimizer whose momentum is moved.
        variables: The variables.

    Returns:
        For each variable, the average of the ranks' velocities, float32, flat; None if the
        optimizer has no momentum of it yet.
    """
    form = _form_of(optimizer)
    assert form is not None
    growth = _growth(optimizer, form)
    if not growth:
        return [None] * len(variables)
    known = {id(compat.tensor_of(one)): at for at, one in enumerate(optimizer._trainable_variables)}
    places = [known.get(id(compat.tensor_of(one))) for one in variables]
    momenta = getattr(optimizer, form.own)
    return [
        None if place is None else np.ravel(momenta[place].numpy()).astype(np.float32) / growth
        for place in places
    ]


def _growth(optimizer: Any, form: _Form) -> np.float32:
    """Returns how many times as large as a velocity the optimizer's own is; 0 if it has none."""
    if not optimizer.built or not int(optimizer.iterations):
        return np.float32(0)
    momentum = getattr(optimizer, form.setting)
    if form.adds_up:  # Keras's SGD has the learning rate and the sign of a step in it
        return np.float32(-float(compat.rate_of(optimizer)) / (1 - momentum))
    if hasattr(optimizer, "_u_product"):  # the momentum of Nadam has a schedule of its own
        return np.float32(1 - float(optimizer._u_product))
    return np.float32(1 - momentum ** int(optimizer.iterations))


class MovedMomentum:
    """Hides an optimizer's momentum from updates whose gradients have had it before the exchange.

    Args:
        optimizer: The optimizer, whose momentum can be moved; it is not kept.
        is_moved: A function that returns true if the exchange applies the momentum: a single rank,
            and ranks outside the process set, leave it to the optimizer.
        local: The optimizer's local variables, which are not exchanged.
    """

    def __init__(
        self, optimizer: Any, *, is_moved: Callable[[], bool], local: Container[Any]
    ) -> None:
        form = _form_of(optimizer)
        assert form is not None
        self._form = form
        self._is_moved = is_moved
        self._local = local
        self._with_velocity: set[Any] = set()  # refs, only while the variables are updated

    @contextmanager
    def of_averages(self, averages: Sequence[Any], variables: Sequence[Any]) -> Iterator[None]:
        """While it lasts, `hidden` knows which of these variables' averages have had a velocity."""
        if not self._is_moved():
            yield
            return
        self._with_velocity = {
            compat.tensor_of(variable).ref()
            for average, variable in zip(averages, variables, strict=True)
            if not isinstance(average, tf.IndexedSlices) and variable not in self._local
        }
        try:
            yield
        finally:
            self._with_velocity = set()

    @contextmanager
    def hidden(self, optimizer: Any, variable: Any) -> Iterator[float]:
        """Sets the optimizer's momentum to 0 while it updates a variable, if it was moved.

        Yields the factor of the learning rate for that update.
        """
        if compat.tensor_of(variable).ref() not in self._with_velocity:
            yield 1.0
            return
        held = vars(optimizer)  # past Keras, which tracks what is assigned to an optimizer
        kept = {name: held[name] for name in self._form.hidden if name in held}
        growth = 1 / (1 - held[self._form.setting]) if self._form.adds_up else 1.0
        held.update(dict.fromkeys(kept, 0.0))
        try:
            yield growth
        finally:
            held.update(kept)


def _form_of(optimizer: Any) -> _Form | None:
    """Returns the form of the momentum that is moved; None for optimizers that keep theirs."""
    for kind in type(optimizer).__mro__:
        if kind.__name__ in _FORMS and kind.__module__.startswith(_HOME):
            return _FORMS[kind.__name__]
    return None
