"""Horovod's callbacks for Keras 3, which has neither optimizer.variables() nor K.set_value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.tensorflow

from hvd_sparse.ranks.horovod_names import replace
from hvd_sparse.tensorflow import compat
from hvd_sparse.tensorflow.local_variables import is_among


def with_short_rate(kind: type) -> type:
    """Adds to an optimizer class the property `lr`, which Horovod's callbacks use; returns it."""
    optimizer: Any = kind
    if not hasattr(optimizer, "lr"):
        optimizer.lr = property(lambda self: self.learning_rate)
    return kind


def accept_local_variables(kind: Any) -> None:
    """Makes Horovod's BroadcastGlobalVariablesCallback classes accept Keras 3 variables.

    Args:
        kind: The base class. A subclass in horovod.keras may be imported later.
    """

    def teach(derived: Any) -> None:
        if derived.__module__.startswith("horovod."):
            replace("__init__", derived, _make_broadcast)

    for derived in kind.__subclasses__():
        teach(derived)
    kind.__init_subclass__ = classmethod(teach)
    replace("register_local_var", kind, _register_local_variable)


def _make_broadcast(
    stock: Callable[..., Any],
    callback: Any,
    root_rank: int,
    device: str = "",
    local_variables: Any = None,
) -> None:
    """Wraps BroadcastGlobalVariablesCallback.__init__; local variables: several, one or None."""
    if hasattr(local_variables, "assign"):
        local_variables = [local_variables]
    if local_variables is not None:
        local_variables = [compat.tensor_of(one) for one in local_variables]
    stock(callback, root_rank, device, local_variables)


def _register_local_variable(stock: Callable[..., Any], callback: Any, variable: Any) -> None:
    stock(callback, compat.tensor_of(variable))


def broadcast_at_batch_end(
    stock: Callable[..., Any], callback: Any, *args: Any, **kwargs: Any
) -> Any:
    """Wraps BroadcastGlobalVariablesCallback.on_batch_end."""
    optimizer = getattr(callback.model, "optimizer", None)
    if not compat.is_keras_3_optimizer(optimizer):
        return stock(callback, *args, **kwargs)
    if not callback.broadcast_done:
        variables = [*callback.model.variables, *compat.variables_of(optimizer)]
        shared = [one for one in variables if not is_among(callback._local_vars, one)]
        horovod.tensorflow.broadcast_variables(shared, root_rank=callback.root_rank)
        callback.broadcast_done = True
    return None


def adjust_learning_rate(stock: Callable[..., Any], callback: Any, epoch: float) -> Any:
    """Wraps the rate change of LearningRateScheduleCallback and LearningRateWarmupCallback.

    Horovod corrects momentum by changing the momentum factor for one batch (Goyal et al., 2017,
    section 2.2, https://arxiv.org/abs/1706.02677). Keras 3 compiles that factor into its steps, so
    here the velocities are multiplied instead. That is equivalent, except that Nesterov's step uses
    the factor a second time, where Horovod's way changes it, too. A momentum that was moved in
    front of the exchange needs no correction: its velocities have no learning rate in them.
    """
    optimizer = callback.model.optimizer
    if not compat.is_keras_3_optimizer(optimizer):
        return stock(callback, epoch)
    before = float(optimizer.learning_rate)
    rate = callback.initial_lr * callback.multiplier(epoch)
    optimizer.learning_rate = rate
    if callback.momentum_correction and before > 0:
        for velocity in compat.velocities_of(optimizer):
            velocity.assign(velocity * (rate / before))
    return None
