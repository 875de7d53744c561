"""What the arguments of DistributedGradientTape amount to, once they have been found good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_sparse.compression import Compression, as_compression
from hvd_sparse.errors import UnsupportedError
from hvd_sparse.reduction import Reduction, checked_reduction
from hvd_sparse.tensorflow import compat

# Arguments of Horovod's functions that belong to an exchange.
_ARGUMENTS = (
    "compression",
    "op",
    "gradient_predivide_factor",
    "num_groups",
    "groups",
    "sparse_as_dense",
)

DTYPES = (tf.float32, tf.float64, tf.float16, tf.bfloat16)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Horovod's arguments, under Horovod's names."""

    compression: Compression
    reduction: Reduction
    sparse_as_dense: bool

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
        """Refuses what a sparse exchange cannot do.

        Raises:
            InvalidArgumentError: An argument lies outside its limits.
            UnsupportedError: A sparse exchange cannot honour an argument.
        """
        chosen = as_compression(compression)
        if chosen.adaptive:
            raise UnsupportedError(
                "adaptive must be False in TensorFlow: measuring and planning are not there yet; "
                f"use {type(chosen).__name__}(adaptive=False), with density and collective"
            )
        if chosen.rescale_residual:
            raise UnsupportedError(
                "rescale_residual must not be True in TensorFlow, where nobody tells an exchange "
                "of the learning rate"
            )
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
        )

    @classmethod
    def taken_from(cls, arguments: dict[str, Any]) -> tuple[Settings, dict[str, Any]]:
        """The settings in a call of one of Horovod's functions, and the call's other arguments.

        Raises:
            InvalidArgumentError: An argument lies outside its limits.
            UnsupportedError: A sparse exchange cannot honour an argument.
        """
        own = {name: arguments[name] for name in _ARGUMENTS if name in arguments}
        rest = {name: value for name, value in arguments.items() if name not in own}
        return cls.checked(**own), rest

    def describe(self) -> dict[str, str]:
        """By name, what must be the same on all ranks."""
        return {
            "compression": repr(self.compression),
            **self.reduction.describe(),
            "sparse_as_dense": str(self.sparse_as_dense),
        }


def check_variable(variable: Any) -> None:
    """Raises UnsupportedError unless the gradients of `variable` can be exchanged."""
    dtype = compat.dtype_of(variable)
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"variable '{compat.name_of(variable)}' is {dtype.name}; a sparse exchange takes "
            f"{', '.join(one.name for one in DTYPES)}"
        )
    if None in tuple(variable.shape):
        raise UnsupportedError(f"variable '{compat.name_of(variable)}' has no fixed shape")
