"""All differences between versions of TensorFlow and Keras."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

# The attributes in which Keras 3's optimizers whose momentum acts on steps keep it.
_VELOCITIES = {"SGD": "momentums", "RMSprop": "_momentums"}


def is_keras_3(keras: Any) -> bool:
    """Returns true if a Keras module is Keras 3."""
    return int(keras.__version__.partition(".")[0]) >= 3


def is_keras_3_optimizer(optimizer: object) -> bool:
    """Returns true for a Keras 3 optimizer, whose steps Horovod's own wrapper does not see."""
    return hasattr(optimizer, "apply") and any(
        kind.__module__.startswith("keras.src.optimizers.base_optimizer")
        for kind in type(optimizer).__mro__
    )


def is_loss_scaling(optimizer: object) -> bool:
    """Returns true for a LossScaleOptimizer, which wraps another optimizer."""
    return any("LossScaleOptimizer" in kind.__name__ for kind in type(optimizer).__mro__)


def is_plain_sgd(optimizer: Any) -> bool:
    """Returns true if a step is learning rate times gradient: no momentum, no clipping."""
    others = ("momentum", "clipnorm", "clipvalue", "global_clipnorm")
    return any(kind.__name__ == "SGD" for kind in type(optimizer).__mro__) and not any(
        getattr(optimizer, name, None) for name in others
    )


def stepping_of(optimizer: Any) -> Any:
    """Returns the optimizer that steps: the one inside a LossScaleOptimizer, or itself."""
    return optimizer.inner_optimizer if is_loss_scaling(optimizer) else optimizer


def rate_of(optimizer: Any) -> Any:
    """Returns the learning rate of an optimizer's next step."""
    if hasattr(optimizer, "_decayed_lr"):  # Keras 2's older kind, whose rate may be a schedule
        return optimizer._decayed_lr(tf.float32)
    if hasattr(optimizer, "_current_learning_rate"):  # Keras 2; it is the last step's rate
        return optimizer._learning_rate(optimizer.iterations)
    return optimizer.learning_rate


def velocities_of(optimizer: Any) -> list[Any]:
    """Returns a Keras 3 optimizer's sums of past steps, each with its learning rate."""
    stepping = stepping_of(optimizer)
    for kind in type(stepping).__mro__:
        if kind.__name__ in _VELOCITIES:
            return list(getattr(stepping, _VELOCITIES[kind.__name__], ()))  # none until it is built
    return []


def keras_3_loss_scaling() -> type | None:
    """Returns Keras 3's LossScaleOptimizer, which `compile` adds for mixed_float16; else None."""
    kind = getattr(tf.keras.optimizers, "LossScaleOptimizer", None)
    return kind if kind is not None and kind.__module__.startswith("keras.src") else None


def keras_2_loss_scaling() -> list[tuple[type, str]]:
    """Returns Keras 2's LossScaleOptimizers, each with its method that computes gradients."""
    known = getattr(tf.keras.mixed_precision, "LossScaleOptimizer", None)
    module: Any = None if known is None else sys.modules[known.__module__]
    if not hasattr(module, "LossScaleOptimizerV3"):
        return []
    return [
        (module.LossScaleOptimizerV3, "compute_gradients"),
        (module.LossScaleOptimizer, "_compute_gradients"),  # for Keras 2's older optimizers
    ]


def scaling_around(optimizer: Any, scaling: Any) -> Any:
    """Returns a Keras 2 LossScaleOptimizer like `scaling`, around another optimizer."""
    return type(scaling).from_config({**scaling.get_config(), "inner_optimizer": optimizer})


def call_as_graph(function: Any, *args: Any) -> Any:
    """Calls a tf.function, as a graph even after `tf.config.run_functions_eagerly(True)`."""
    if tf.config.functions_run_eagerly() and tf.executing_eagerly():
        function = function.get_concrete_function(*args)
    return function(*args)


def new_variable(value: tf.Tensor, name: str | None = None) -> tf.Variable:
    """Returns a new variable that is not trained. Call it in `tf.init_scope()`.

    `tf.Variable` goes through `tf.variable_creator_scope`, where a tf.function refuses new
    variables from its second trace on. ResourceVariable bypasses that.
    """
    return ResourceVariable(value, trainable=False, name=name)


def name_of(variable: Any) -> str:
    """Returns the variable's name, including its layer's where Keras provides it."""
    return str(getattr(variable, "path", variable.name))


def dtype_of(variable: Any) -> tf.DType:
    """Returns the variable's type, which is text in Keras 3."""
    return tf.as_dtype(variable.dtype)


def wide_type_of(variable: Any) -> tf.DType:
    """Returns the type of what is kept of a variable in float32 at least."""
    dtype = dtype_of(variable)
    return tf.float32 if dtype.size < tf.float32.size else dtype


def tensor_of(variable: Any) -> Any:
    """Returns TensorFlow's own variable, which Keras 3 wraps."""
    return variable.value if hasattr(variable, "path") else variable


def is_seed(variable: Any) -> bool:
    """Returns true for the random state of a layer, whose type Horovod does not support."""
    return "seed_generator_state" in name_of(variable)


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Creates an optimizer's state, as its first step would, unless it exists."""
    if hasattr(optimizer, "build"):
        if not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
            optimizer.build(variables)
    else:  # Keras 2's older kind
        optimizer._create_all_weights(variables)


def variables_of(optimizer: Any) -> list[Any]:
    """Returns the variables that are an optimizer's state."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)
