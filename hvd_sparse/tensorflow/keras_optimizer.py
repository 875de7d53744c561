"""hvd.DistributedOptimizer for optimizers of Keras: of Keras 3 whatever the compression.

Keras 3 gives all gradients to `optimizer.apply`. Horovod's own wrapper overrides methods of Keras
2, which nobody calls any more: with it the ranks' weights drift apart without a word. So here
`apply` exchanges first, with Horovod's compressions, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as hvd

from hvd_sparse.compression import is_sparse_compression
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.tensorflow import compat
from hvd_sparse.tensorflow.settings import Settings
from hvd_sparse.tensorflow.tape import reducer

_MARK = "_hvd_sparse_distributed"


def distribute_keras_3(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = hvd.Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = hvd.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = hvd.global_process_set,
    scale_local_gradients: bool = True,
    use_locking: bool = False,
) -> Any:
    """Makes `optimizer.apply` use gradients that were exchanged. The same object comes back.

    Args:
        optimizer: Of Keras 3; any but a LossScaleOptimizer.
        name: Of operations, for Horovod's compressions.
        device_dense: As Horovod has it, for its compressions.
        device_sparse: As Horovod has it, for its compressions.
        compression: One of Horovod's, or a sparse one, as a class or an instance.
        sparse_as_dense: Whether IndexedSlices become tensors; else Horovod gathers them.
        gradient_predivide_factor: As Horovod has it.
        op: Average or Sum.
        backward_passes_per_step: 1: Keras 3 accumulates gradients by itself.
        average_aggregated_gradients: As Horovod has it; without meaning for 1.
        num_groups: As Horovod has it, for its compressions.
        groups: As Horovod has it, for its compressions.
        process_set: Horovod's; ranks outside it exchange nothing.
        scale_local_gradients: Without meaning: no variable is local here.
        use_locking: Without meaning for Keras.

    Raises:
        InvalidArgumentError: An argument lies outside its limits, or the optimizer already is a
            distributed one.
        UnsupportedError: What was asked for cannot be done.
    """
    if backward_passes_per_step != 1:
        raise UnsupportedError(
            "backward_passes_per_step must be 1 with Keras 3, got "
            f"{backward_passes_per_step}: give the optimizer gradient_accumulation_steps"
        )
    if compat.is_loss_scaling(optimizer):
        raise UnsupportedError(
            "a LossScaleOptimizer cannot be distributed: it skips steps on single ranks; use "
            "mixed_bfloat16, which needs no loss scaling"
        )
    if getattr(type(optimizer), _MARK, False):
        raise InvalidArgumentError(
            f"this {type(optimizer).__name__} already is a DistributedOptimizer"
        )
    if is_sparse_compression(compression):
        settings = Settings.checked(
            compression,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            num_groups=num_groups,
            groups=groups,
            sparse_as_dense=sparse_as_dense,
        )
        reduce = reducer(settings, process_set, owner=optimizer)
    else:
        stock = hvd._make_allreduce_grads_fn(
            name or f"Distributed{type(optimizer).__name__}",
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            op,
            gradient_predivide_factor,
            groups or num_groups or None,
            process_set=process_set,
        )
        reduce = _by_horovod(stock)
    optimizer.__class__ = _exchanging(type(optimizer), reduce)
    return optimizer


def _by_horovod(stock: Callable[..., Any]) -> Callable[..., list[Any]]:
    def reduce(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return list(stock(gradients, [compat.tensor_of(variable) for variable in variables]))

    return reduce


def distribute_keras_2(stock: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Horovod's optimizer for Keras 2 (tf_keras), with gradients that are exchanged sparsely.

    Args:
        stock: Horovod's DistributedOptimizer.
        arguments: Of a call of it, by name.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.
        UnsupportedError: A sparse exchange cannot do what was asked for.
    """
    settings, rest = Settings.taken_from(arguments)
    optimizer = stock(**rest)
    reduce = reducer(settings, optimizer.process_set, owner=optimizer)
    optimizer._allreduce_grads = reduce
    helper = optimizer._agg_helper  # of backward_passes_per_step
    for name in ("allreduce_grads", "_allreduce_grads"):
        if hasattr(helper, name):
            setattr(helper, name, reduce)
    return optimizer


def _exchanging(stock: type, reduce: Callable[..., Sequence[Any]]) -> type:
    """A class like `stock` whose steps exchange; a saved model names the stock one."""

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        variables = trainable_variables
        if variables is None:
            variables = self._trainable_variables
        return stock.apply(self, reduce(list(grads), list(variables)), trainable_variables)  # type: ignore[attr-defined]

    members: dict[str, Any] = {
        "apply": apply,
        _MARK: True,
        "__module__": stock.__module__,
        "__doc__": stock.__doc__,
    }
    if not hasattr(stock, "lr"):  # Horovod's callbacks know the learning rate by this name
        members["lr"] = property(lambda self: self.learning_rate)
    return type(stock.__name__, (stock,), members)
