"""All differences between versions of TensorFlow and Keras."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

# Of Keras 3's optimizers, whose momentum acts on steps: where they keep it.
_VELOCITIES = {"SGD": "momentums", "RMSprop": "_momentums"}


def is_keras_3(keras: Any) -> bool:
    """Whether a module that is Keras is Keras 3."""
    return int(keras.__version__.partition(".")[0]) >= 3


def is_keras_3_optimizer(optimizer: object) -> bool:
    """Whether it is an optimizer of Keras 3, whose steps Horovod's own wrapper does not see."""
    return hasattr(optimizer, "apply") and any(
        kind.__module__.startswith("keras.src.optimizers.base_optimizer")
        for kind in type(optimizer).__mro__
    )


def is_loss_scaling(optimizer: object) -> bool:
    """Whether the optimizer scales the loss of another one."""
    return any("LossScaleOptimizer" in kind.__name__ for kind in type(optimizer).__mro__)


def is_plain_sgd(optimizer: Any) -> bool:
    """Whether steps are learning rate times gradient: without momentum or clipping."""
    others = ("momentum", "clipnorm", "clipvalue", "global_clipnorm")
    return any(kind.__name__ == "SGD" for kind in type(optimizer).__mro__) and not any(
        getattr(optimizer, name, None) for name in others
    )


def stepping_of(optimizer: Any) -> Any:
    """The optimizer that steps: the one inside a LossScaleOptimizer, or itself."""
    return optimizer.inner_optimizer if is_loss_scaling(optimizer) else optimizer


def rate_of(optimizer: Any) -> Any:
    """The learning rate of an optimizer's next step."""
    if hasattr(optimizer, "_decayed_lr"):  # of Keras 2's older kind, whose rate may be a schedule
        return optimizer._decayed_lr(tf.float32)
    if hasattr(optimizer, "_current_learning_rate"):  # a schedule's in Keras 2; of the last step
        return optimizer._learning_rate(optimizer.iterations)
    return optimizer.learning_rate


def velocities_of(optimizer: Any) -> list[Any]:
    """Where a Keras 3 optimizer sums up past steps, each with its learning rate."""
    stepping = stepping_of(optimizer)
    for kind in type(stepping).__mro__:
        if kind.__name__ in _VELOCITIES:
            return list(getattr(stepping, _VELOCITIES[kind.__name__], ()))  # it may not be built
    return []


def keras_3_loss_scaling() -> type | None:
    """Keras 3's LossScaleOptimizer, which `compile` puts around optimizers with mixed_float16."""
    kind = getattr(tf.keras.optimizers, "LossScaleOptimizer", None)
    return kind if kind is not None and kind.__module__.startswith("keras.src") else None


def keras_2_loss_scaling() -> list[tuple[type, str]]:
    """Keras 2's LossScaleOptimizers, and by which method each computes gradients."""
    known = getattr(tf.keras.mixed_precision, "LossScaleOptimizer", None)
    module: Any = None if known is None else sys.modules[known.__module__]
    if not hasattr(module, "LossScaleOptimizerV3"):
        return []
    return [
        (module.LossScaleOptimizerV3, "compute_gradients"),
        (module.LossScaleOptimizer, "_compute_gradients"),  # of Keras 2's older optimizers
    ]


def scaling_around(optimizer: Any, scaling: Any) -> Any:
    """A LossScaleOptimizer of Keras 2 like `scaling`, around another optimizer."""
    return type(scaling).from_config({**scaling.get_config(), "inner_optimizer": optimizer})


def call_as_graph(function: Any, *args: Any) -> Any:
    """Calls a tf.function, as a graph even after `tf.config.run_functions_eagerly(True)`."""
    if tf.config.functions_run_eagerly() and tf.executing_eagerly():
        function = function.get_concrete_function(*args)
    return function(*args)


def new_variable(value: tf.Tensor, name: str | None = None) -> tf.Variable:
    """A variable that is not trained. Call it in `tf.init_scope()`.

    `tf.Variable` asks the tf.function that is being traced, which refuses from its second trace on
    (`tf.variable_creator_scope`). The class itself asks nobody.
    """
    return ResourceVariable(value, trainable=False, name=name)


def name_of(variable: Any) -> str:
    """The variable's name; with its layer's, where Keras tells."""
    return str(getattr(variable, "path", variable.name))


def dtype_of(variable: Any) -> tf.DType:
    """The variable's type; Keras 3 says it as text."""
    return tf.as_dtype(variable.dtype)


def tensor_of(variable: Any) -> Any:
    """What TensorFlow and Horovod know as the variable; Keras 3 wraps it."""
    return variable.value if hasattr(variable, "path") else variable


def is_seed(variable: Any) -> bool:
    """Whether it is the state of a layer's random numbers, which Horovod has no type for."""
    return "seed_generator_state" in name_of(variable)


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Makes an optimizer's state, as its first step would; nothing where it is there."""
    if hasattr(optimizer, "build"):
        if not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
            optimizer.build(variables)
    else:  # of Keras 2's older kind
        optimizer._create_all_weights(variables)


def variables_of(optimizer: Any) -> list[Any]:
    """An optimizer's state."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)
