"""The settings of an exchange: the checked arguments of DistributedGradientTape and the like."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_sparse.compression import Compression, LocalSteps, as_compression
from hvd_sparse.compression.collectives import SHARD_SUM
from hvd_sparse.compression.parts import AUTO, MOVE
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.exchange.local_share import check_not_twice
from hvd_sparse.exchange.reduction import Reduction, checked_reduction
from hvd_sparse.ranks.world import may_have_peers
from hvd_sparse.tensorflow import compat
from hvd_sparse.tensorflow.momentum import masks_velocity, momentum_to_move

# The arguments of Horovod's functions that belong to an exchange.
_ARGUMENTS = (
    "compression",
    "op",
    "gradient_predivide_factor",
    "num_groups",
    "groups",
    "sparse_as_dense",
)

# Options of Keras optimizers, each with the option of a compression that does the same. Keras's
# weight_decay is not among them: it shrinks the weights and leaves the gradient alone.
_DONE_BY = {
    "momentum": "momentum",
    "beta_1": "momentum",
    "l2_regularization_strength": "weight_decay",
    "l2_shrinkage_regularization_strength": "weight_decay",
}

# Keras's Adafactor multiplies the mean over a gradient's row by that over its column. Where both
# hold only zeros, each mean is epsilon_1. If epsilon_1 is smaller than this, the product is 0 in
# float32, and Adafactor divides a gradient of 0 by it.
_LEAST_EPSILON = 1e-15

DTYPES = (tf.float32, tf.float64, tf.float16, tf.bfloat16)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one exchange: Horovod's arguments, under Horovod's names, and our own.

    Attributes:
        compression: The sparse compression.
        reduction: The reduction of gradients over the ranks.
        sparse_as_dense: True if IndexedSlices are exchanged like other gradients.
        follows_rate: True if the residual is rescaled when the optimizer's learning rate changes.
        marks_non_finite: True if a step that is not finite gives NaN on all ranks instead of an
            error, as loss scaling needs.
        momentum: The momentum that each rank applies to its own gradients; 0 if there is none.
        dampening: Gradients are multiplied by 1 - dampening before they are added to the velocity;
            above 0 if the momentum is the optimizer's, moved.
        masks_velocity: True if the velocity of a delivered entry becomes 0.
    """

    compression: Compression
    reduction: Reduction
    sparse_as_dense: bool
    follows_rate: bool = False
    marks_non_finite: bool = False
    momentum: float = 0.0
    dampening: float = 0.0
    masks_velocity: bool = True

    @classmethod
    def checked(
        cls,
        compression: object,
        *,
        op: int = hvd.Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        sparse_as_dense: bool = False,
    ) -> Settings:
        """Returns the settings; refuses arguments that a sparse exchange does not support.

        Raises:
            InvalidArgumentError: An argument lies outside its limits.
            UnsupportedError: A sparse exchange cannot honour an argument.
        """
        chosen = as_compression(compression)
        if chosen.is_local:
            _check_local_steps(chosen.local_steps)
            chosen = chosen.of_differences()
        return cls(
            compression=chosen,
            reduction=checked_reduction(
                hvd,
                op=op,
                gradient_predivide_factor=gradient_predivide_factor,
                num_groups=num_groups,
                groups=groups,
            ),
            sparse_as_dense=bool(sparse_as_dense),
            momentum=chosen.feedback.own_momentum,
        )

    @classmethod
    def taken_from(cls, arguments: dict[str, Any]) -> tuple[Settings, dict[str, Any]]:
        """Splits the arguments of a call of Horovod's into settings and the other arguments.

        Raises:
            InvalidArgumentError: An argument lies outside its limits.
            UnsupportedError: A sparse exchange cannot honour an argument.
        """
        if as_compression(arguments["compression"]).is_local:
            raise UnsupportedError(
                "local_steps needs hvd.DistributedOptimizer around an optimizer of Keras 3: a tape "
                "takes no steps, and Keras 2 is not supported"
            )
        own = {name: arguments[name] for name in _ARGUMENTS if name in arguments}
        rest = {name: value for name, value in arguments.items() if name not in own}
        return cls.checked(**own), rest

    def of_tape(self, learning_rate: Any = None) -> Settings:
        """Returns the settings for a tape's exchange, with its learning rate or None.

        A tape does not know its optimizer, so that one keeps its momentum.

        Raises:
            InvalidArgumentError: A learning rate is given, but the residual must not follow it.
            UnsupportedError: The residual must follow the learning rate, but none is given.
        """
        wanted, has_rate = self.compression.feedback.rescale, learning_rate is not None
        if wanted is True and not has_rate:
            raise UnsupportedError(
                "Feedback rescale=True with a tape, which does not know the learning rate, needs "
                "DistributedGradientTape(..., learning_rate=optimizer.learning_rate)"
            )
        if has_rate and wanted is False:
            raise InvalidArgumentError(
                f"learning_rate must be None where Feedback rescale is False, got {learning_rate!r}"
            )
        return replace(self, follows_rate=has_rate)

    def of_optimizer(self, optimizer: Any) -> Settings:
        """Returns the settings for a Keras optimizer's exchange.

        Raises:
            InvalidArgumentError: The optimizer repeats what the compression does, or would divide
                by zero where averages are zero.
        """
        if not _keeps_all(self.compression):
            _check_epsilon(optimizer)
        found = {name: getattr(optimizer, name, None) for name in _DONE_BY}
        check_not_twice(type(optimizer).__name__, found, _DONE_BY, self.compression)
        wanted = self.compression.feedback.rescale
        if wanted == AUTO:
            by_default = self.compression.rescales_by_default
            wanted = by_default and compat.is_plain_sgd(optimizer)
        settings = replace(self, follows_rate=bool(wanted))
        if self.compression.feedback.momentum == MOVE:
            momentum = momentum_to_move(optimizer)
            settings = replace(
                settings,
                momentum=momentum,
                dampening=momentum,
                masks_velocity=masks_velocity(optimizer),
            )
        return settings

    def needs_exchange(self, process_set: Any) -> bool:
        """Returns true if an exchange over a Horovod process set changes this rank's gradients."""
        if not process_set.included():
            return False
        return may_have_peers(process_set.size()) or self.compression.feedback.changes_gradients

    def moves_momentum(self, process_set: Any) -> bool:
        """Returns true if ranks of a Horovod process set apply the optimizer's own momentum."""
        is_movable = self.dampening > 0 and process_set.included()
        return is_movable and may_have_peers(process_set.size())

    def among(self, process_set: Any) -> Settings:
        """Returns the settings for an exchange over a Horovod process set.

        A single rank that clips or decays leaves the optimizer its momentum.
        """
        if self.dampening == 0 or self.moves_momentum(process_set):
            return self
        return replace(self, momentum=0.0, dampening=0.0)

    def describe(self) -> dict[str, str]:
        """Returns, by name, the options that must be the same on all ranks."""
        return {
            "compression": repr(self.compression),
            **self.reduction.describe(),
            "sparse_as_dense": str(self.sparse_as_dense),
            "rescaling of residuals": str(self.follows_rate),
            "loss scaling": str(self.marks_non_finite),
            "momentum of the exchange": f"{self.momentum:g}",
        }


def _check_local_steps(local_steps: LocalSteps) -> None:
    """Raises UnsupportedError for an option of local steps that only PyTorch has."""
    if local_steps.lr_scale not in (AUTO, 1.0):
        raise UnsupportedError(
            f"LocalSteps lr_scale must be 1 or 'auto' in TensorFlow, got {local_steps.lr_scale}"
        )
    if local_steps.streams:
        raise UnsupportedError(
            "LocalSteps fragments must be 1 and delay 0 in TensorFlow, got "
            f"{local_steps.fragments} and {local_steps.delay}"
        )


def _keeps_all(compression: Compression) -> bool:
    """Returns true if no entry of a gradient becomes zero on its way."""
    return compression.collective_name == SHARD_SUM and compression.values in (
        "float32",
        "bfloat16",
    )


def _check_epsilon(optimizer: Any) -> None:
    """Raises InvalidArgumentError if an optimizer is, or contains, an Adafactor that makes NaN."""
    for one in (optimizer, *getattr(optimizer, "optimizers", ())):
        is_adafactor = any(kind.__name__ == "Adafactor" for kind in type(one).__mro__)
        if is_adafactor and one.epsilon_1 < _LEAST_EPSILON:
            raise InvalidArgumentError(
                f"epsilon_1 of Adafactor must be at least {_LEAST_EPSILON} with a sparse "
                f"compression, got {one.epsilon_1}: where a row and a column of a gradient hold "
                "zeros only, as a sparse exchange leaves them, Keras divides 0 by 0"
            )


def check_variable(variable: Any, *, sliced: bool, compression: Compression) -> None:
    """Raises UnsupportedError unless the gradients of `variable` can be exchanged.

    Args:
        variable: A TensorFlow or Keras variable.
        sliced: True if the gradients are IndexedSlices that Horovod gathers.
        compression: The user's compression.
    """
    dtype = compat.dtype_of(variable)
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"variable '{compat.name_of(variable)}' is {dtype.name}; a sparse exchange takes "
            f"{', '.join(one.name for one in DTYPES)}"
        )
    if None in tuple(variable.shape):
        raise UnsupportedError(f"variable '{compat.name_of(variable)}' has no fixed shape")
    if sliced and compression.feedback.changes_gradients:
        raise UnsupportedError(
            f"the gradient of '{compat.name_of(variable)}' is IndexedSlices, on which clip_norm, "
            "weight_decay and a number as momentum cannot act: use sparse_as_dense=True"
        )
