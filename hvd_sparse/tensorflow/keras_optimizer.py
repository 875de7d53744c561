"""hvd.DistributedOptimizer for Keras optimizers; for those of Keras 3 with any compression.

Keras 3 passes all gradients to `optimizer.apply`. Horovod's own wrapper overrides methods of Keras
2, which Keras 3 never calls: with it the ranks' weights silently drift apart. So here `apply`
exchanges first, with Horovod's compressions, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_sparse.compression import as_compression, is_sparse_compression
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.exchange.interval import check_averages
from hvd_sparse.tensorflow import compat, loss_scaling
from hvd_sparse.tensorflow.accumulation import Accumulation
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tensorflow.keras_callbacks import with_short_rate
from hvd_sparse.tensorflow.local_steps import ATTRIBUTE, LocalSteps, refuse_amid_interval
from hvd_sparse.tensorflow.local_variables import REFS, LocalVariables, exchanged
from hvd_sparse.tensorflow.momentum import MovedMomentum, refuse_another
from hvd_sparse.tensorflow.settings import Settings
from hvd_sparse.tensorflow.tape import exchange_for, reducer

# A function of gradients, variables and, with loss scaling, the scale; returns averages.
_Reduce: TypeAlias = Callable[..., list[Any]]


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
    """Makes `optimizer.apply` exchange gradients first; returns the same object.

    The parameters are those of Horovod's DistributedOptimizer.

    Args:
        optimizer: A Keras 3 optimizer; not a LossScaleOptimizer, but the one inside.
        name: Prefix of operations' names, for Horovod's compressions only.
        device_dense: Device of dense allreduces, for Horovod's compressions only.
        device_sparse: Device of allgathers, for Horovod's compressions only.
        compression: A compression of Horovod's, or a sparse one as a class or an instance.
        sparse_as_dense: True if IndexedSlices become tensors; otherwise Horovod gathers them.
        gradient_predivide_factor: Splits the averaging: division before and after the sum.
        op: Average or Sum.
        backward_passes_per_step: Calls of `apply` per exchange and step.
        average_aggregated_gradients: True to average over these passes instead of summing.
        num_groups: Number of allreduce groups, for Horovod's compressions only.
        groups: Groups of allreduces, for Horovod's compressions only.
        process_set: Horovod's process set; ranks outside it exchange nothing.
        scale_local_gradients: True if gradients of local variables, those given to
            `register_local_var`, are divided by the number of ranks.
        use_locking: Ignored with Keras.

    Raises:
        InvalidArgumentError: An argument lies outside its limits, or the optimizer already is a
            distributed one.
        UnsupportedError: The exchange does not support an argument.
    """
    if hasattr(type(optimizer), loss_scaling.REDUCE):
        raise InvalidArgumentError(
            f"this {type(optimizer).__name__} already is a DistributedOptimizer"
        )
    local = LocalVariables(process_set, scales=scale_local_gradients)
    momentum, local_steps = None, None
    if is_sparse_compression(compression):
        chosen = as_compression(compression)
        settings = Settings.checked(
            chosen,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            num_groups=num_groups,
            groups=groups,
            sparse_as_dense=sparse_as_dense,
        ).of_optimizer(optimizer)
        reduce = _sparsely(settings, process_set, optimizer)
        if chosen.is_local:
            check_averages(settings.reduction.averages)
            local_steps = LocalSteps(
                chosen,
                local.around(reduce),
                _finder(settings, process_set, optimizer),
                optimizer,
                process_set,
            )
        if settings.dampening > 0:
            momentum = MovedMomentum(
                optimizer, is_moved=lambda: settings.moves_momentum(process_set), local=local
            )
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
    accumulation = None
    if backward_passes_per_step != 1:
        accumulation = Accumulation(backward_passes_per_step, averages=average_aggregated_gradients)
    optimizer.__class__ = _exchanging(
        type(optimizer), reduce, accumulation, local, momentum, local_steps
    )
    return optimizer


def _sparsely(settings: Settings, process_set: Any, optimizer: Any) -> _Reduce:
    known = weakref.ref(optimizer)  # a cycle would keep its exchange until Python's collector runs

    def reduce(gradients: Sequence[Any], variables: Sequence[Any], scale: Any = None) -> list[Any]:
        owner = known()
        if settings.moves_momentum(process_set):
            refuse_another(owner, settings.momentum)
        if scale is not None:
            return loss_scaling.reducer(settings, process_set, owner)(gradients, variables, scale)
        plain = reducer(settings, process_set, owner)
        factor = getattr(owner, "loss_scale_factor", None)  # Keras 3 divides by it afterwards
        if factor is not None:
            return loss_scaling.without_scale(plain, gradients, variables, factor)
        return plain(gradients, variables)

    return reduce


def _finder(
    settings: Settings, process_set: Any, optimizer: Any
) -> Callable[[Sequence[Any]], GradientExchange | None]:
    known = weakref.ref(optimizer)

    def exchange_of(variables: Sequence[Any]) -> GradientExchange | None:
        owner = known()
        shared = exchanged(owner, variables)
        return exchange_for(settings, shared, [False] * len(shared), process_set, owner)

    return exchange_of


def _by_horovod(stock: Callable[..., Any]) -> _Reduce:
    def reduce(gradients: Sequence[Any], variables: Sequence[Any], scale: Any = None) -> list[Any]:
        del scale  # it is the same on all ranks, and Horovod keeps no residuals
        return list(stock(gradients, [compat.tensor_of(variable) for variable in variables]))

    return reduce


def distribute_keras_2(stock: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Returns Horovod's optimizer for Keras 2 (tf_keras), with a sparse exchange.

    Args:
        stock: Horovod's DistributedOptimizer.
        arguments: The arguments of a call of it, by name.

    Raises:
        InvalidArgumentError: An argument lies outside its limits.
        UnsupportedError: A sparse exchange does not support an argument.
    """
    scaling = arguments["optimizer"]
    if compat.is_loss_scaling(scaling):
        inner = distribute_keras_2(stock, {**arguments, "optimizer": scaling.inner_optimizer})
        return compat.scaling_around(inner, scaling)
    settings, rest = Settings.taken_from(arguments)
    optimizer = stock(**rest)
    by_scale = _sparsely(settings.of_optimizer(optimizer), optimizer.process_set, optimizer)
    helper = optimizer._agg_helper  # of backward_passes_per_step
    known = weakref.ref(optimizer)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def reduce(gradients: Sequence[Any], variables: Sequence[Any], *_: Any) -> list[Any]:
        return by_scale(gradients, variables, loss_scaling.scale_of(known()))

    optimizer._allreduce_grads = reduce
    setattr(optimizer, loss_scaling.SEVERAL_PASSES, helper is not None)
    for name in ("allreduce_grads", "_allreduce_grads"):
        if hasattr(helper, name):
            setattr(helper, name, reduce)
    return optimizer


def _refuse_loss_scaling(*_: Any) -> NoReturn:
    raise UnsupportedError(
        "local_steps cannot be used under loss scaling, where a rank may skip a step: use the "
        "policy mixed_bfloat16"
    )


def refuse_amid_step(optimizer: Any) -> None:
    """Raises InvalidArgumentError if this rank has summed gradients or stepped on its own."""
    refuse_amid_interval(optimizer)
    stepping = compat.stepping_of(optimizer)
    accumulation = getattr(stepping, loss_scaling.ACCUMULATION, None)
    by_horovod = getattr(getattr(stepping, "_agg_helper", None), "counter", 0)
    if int(by_horovod) or (accumulation is not None and accumulation.under_way):
        raise InvalidArgumentError(
            "a checkpoint must be saved after an exchange, and backward_passes_per_step has added "
            "up gradients that were not exchanged yet"
        )


def _exchanging(
    stock: Any,
    reduce: _Reduce,
    accumulation: Accumulation | None,
    local: LocalVariables,
    momentum: MovedMomentum | None,
    local_steps: LocalSteps | None,
) -> type:
    """Returns a subclass of `stock` whose steps exchange; saved models still name `stock`."""
    reduce = local.around(reduce)

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        own = trainable_variables is None
        variables = list(self._trainable_variables if own else trainable_variables)

        def apply_averages(averages: Sequence[Any]) -> Any:
            if momentum is None:
                return stock.apply(self, averages, trainable_variables)
            with momentum.of_averages(averages, variables):
                return stock.apply(self, averages, trainable_variables)

        if loss_scaling.has_exchanged(self):
            return apply_averages(grads)

        def exchange_and_apply(gradients: list[Any]) -> Any:
            if local_steps is not None:
                return local_steps.step(gradients, variables, lambda: apply_averages(gradients))
            return apply_averages(reduce(gradients, variables))

        if accumulation is None:
            return exchange_and_apply(list(grads))
        if not self.built:  # its variables cannot be created within a branch of the graph
            self.build(variables)
        return accumulation.step(grads, variables, exchange_and_apply)

    def update_step(self: Any, gradient: Any, variable: Any, learning_rate: Any) -> Any:
        assert momentum is not None
        with momentum.hidden(self, variable) as factor:
            rate = learning_rate if factor == 1 else factor * learning_rate
            return stock.update_step(self, gradient, variable, rate)

    members: dict[str, Any] = {
        "apply": apply,
        loss_scaling.REDUCE: staticmethod(reduce if local_steps is None else _refuse_loss_scaling),
        loss_scaling.ACCUMULATION: accumulation,
        ATTRIBUTE: local_steps,
        REFS: local.refs,
        "register_local_var": staticmethod(local.add),  # as Horovod's own optimizers have it
        "__module__": stock.__module__,
        "__doc__": stock.__doc__,
    }
    if momentum is not None:
        members["update_step"] = update_step
    return with_short_rate(type(stock.__name__, (stock,), members))
