"""Loss scaling in Keras: all ranks skip a step, or none.

Keras checks whether gradients are finite; if not, it skips the optimizer's step and halves the
scale. So they are exchanged before the check: a gradient that is not finite on one rank is then not
finite on any. Residuals stay valid when the scale changes: they hold unscaled gradients.

In Keras 2 the inner optimizer computes the gradients of a scaled loss, and exchanges them before
its LossScaleOptimizer sees any; so the inner optimizer must be given the scale.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import tensorflow as tf

from hvd_sparse.errors import UnsupportedError
from hvd_sparse.tensorflow import compat, local_variables, tape
from hvd_sparse.tensorflow.settings import Settings

# A distributed optimizer class is recognised by this attribute, the function that exchanges.
REDUCE = "_hvd_sparse_reduce"
ACCUMULATION = "_hvd_sparse_accumulation"
SEVERAL_PASSES = "_hvd_sparse_several_passes"  # attribute of distributed Keras 2 optimizers
_EXCHANGED = "_hvd_sparse_exchanged"
_SCALE = "_hvd_sparse_scale"


def reducer(
    settings: Settings, process_set: Any, owner: Any
) -> Callable[[Sequence[Any], Sequence[Any], Any], list[Any]]:
    """Returns a function that averages scaled gradients; all ranks get NaN instead of an error."""
    reduce = tape.reducer(settings_for(settings), process_set, owner=owner)
    return functools.partial(without_scale, reduce)


def without_scale(
    reduce: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
    gradients: Sequence[Any],
    variables: Sequence[Any],
    scale: Any,
) -> list[Any]:
    """Returns scaled averages of scaled gradients, which are exchanged unscaled.

    Raises:
        UnsupportedError: A variable is float16.
    """
    for variable in variables:
        if compat.dtype_of(variable) == tf.float16:
            raise UnsupportedError(
                f"variable '{compat.name_of(variable)}' is float16, which cannot hold "
                "gradients without their loss scale: use the policy mixed_float16, whose "
                "variables are float32"
            )
    return _times(reduce(_times(gradients, 1 / scale), variables), scale)


def settings_for(settings: Settings) -> Settings:
    """Returns the settings for an exchange under loss scaling."""
    return replace(settings, marks_non_finite=True)


def apply_scaled(
    stock: Callable[..., Any], scaling: Any, grads: Sequence[Any], trainable_variables: Any = None
) -> Any:
    """Wraps LossScaleOptimizer.apply: exchanges first if the inner optimizer is distributed."""
    inner = scaling.inner_optimizer
    reduce = getattr(type(inner), REDUCE, None)
    if reduce is None:
        return stock(scaling, grads, trainable_variables)
    if getattr(inner, ACCUMULATION) is not None:
        _refuse_several_passes()
    local_variables.refuse_to_scale(inner)
    variables = trainable_variables
    if variables is None:
        variables = inner._trainable_variables
    scale = scaling.dynamic_scale.value if scaling.built else scaling.initial_scale
    averages = reduce(list(grads), list(variables), scale)
    with _noted(inner, _EXCHANGED, True):
        return stock(scaling, averages, trainable_variables)


def compute_scaled(stock: Callable[..., Any], scaling: Any, *args: Any, **kwargs: Any) -> Any:
    """Wraps Keras 2's LossScaleOptimizer.compute_gradients: gives the inner optimizer the scale."""
    inner = scaling.inner_optimizer
    if getattr(inner, SEVERAL_PASSES, False):
        _refuse_several_passes()
    local_variables.refuse_to_scale(inner)
    with _noted(inner, _SCALE, scaling.loss_scale):
        return stock(scaling, *args, **kwargs)


def scale_of(optimizer: Any) -> Any:
    """Returns the scale of the gradients that a Keras 2 optimizer computes now; None if none."""
    return getattr(optimizer, _SCALE, None)


def has_exchanged(optimizer: Any) -> bool:
    """Returns true if the gradients that this optimizer gets now are averages already."""
    return bool(getattr(optimizer, _EXCHANGED, False))


def _refuse_several_passes() -> NoReturn:
    raise UnsupportedError(
        "backward_passes_per_step must be 1 under loss scaling, which would have to wait for the "
        "last pass"
    )


@contextmanager
def _noted(optimizer: Any, name: str, value: Any) -> Iterator[None]:
    setattr(optimizer, name, value)
    try:
        yield
    finally:
        setattr(optimizer, name, None)


def _times(gradients: Sequence[Any], factor: Any) -> list[Any]:
    def times(gradient: Any) -> Any:
        return tf.math.scalar_mul(tf.cast(factor, gradient.dtype), gradient)

    return [gradient if gradient is None else times(gradient) for gradient in gradients]
