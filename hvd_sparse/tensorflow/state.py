"""The state of an exchange as tf.Variables, for checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.ranks.world import in_elastic_job
from hvd_sparse.tensorflow import compat, local_variables, loss_scaling
from hvd_sparse.tensorflow.registry import exchange_of, find_exchange
from hvd_sparse.tensorflow.settings import Settings


def residual_variables(target: Any) -> list[tf.Variable]:
    """The exchange's state: what this rank has yet to send, and what is remembered of it.

    It belongs to this rank alone: each rank saves its own, in a file of its own.

    Args:
        target: An optimizer from `hvd.DistributedOptimizer`; or the variables, in the order in
            which a tape from `hvd.DistributedGradientTape` is given them.

    Returns:
        The residual, what sparsifiers remember of each layer, the learning rate, if the residual
        follows that, and the velocity, if momentum is corrected, as float32 variables. Where all
        gradients always travel dense, none of them but the velocity.

    Raises:
        InvalidArgumentError: Nothing of it was exchanged yet, or prepared.
    """
    exchange = find_exchange(target)
    if exchange is None:
        raise InvalidArgumentError(
            "residual_variables() needs an exchange, and there is none yet: take a step, or call "
            "prepare()"
        )
    return exchange.variables


def prepare(
    variables: Sequence[Any],
    compression: Any,
    *,
    optimizer: Any = None,
    learning_rate: Any = None,
    sliced: Sequence[Any] = (),
    process_set: Any = hvd.global_process_set,
    **options: Any,
) -> list[tf.Variable]:
    """Builds the exchange before its first step, so that its state can be restored. Collective.

    Args:
        variables: As the tape or the optimizer will be given them, in that order. A tape's without
            local ones; an optimizer knows its own.
        compression: As the tape or the optimizer is given it.
        optimizer: From `hvd.DistributedOptimizer`, or `model.optimizer`, which `compile` may have
            wrapped for loss scaling; None where a tape exchanges.
        learning_rate: As a tape is given it.
        sliced: Those of the variables whose gradients are IndexedSlices, such as embeddings.
        process_set: Horovod's; ranks outside it have no state.
        **options: Horovod's op, gradient_predivide_factor and sparse_as_dense, as the tape or the
            optimizer is given them.

    Returns:
        As `residual_variables`; nothing where a rank exchanges with nobody, but for its velocity.

    Raises:
        InvalidArgumentError: An argument lies outside its limits, or differs between ranks.
        UnsupportedError: A sparse exchange cannot do what was asked for; or the job is elastic.
    """
    settings = Settings.checked(compression, **options)
    if in_elastic_job():
        raise UnsupportedError(
            "prepare() is not for elastic jobs, where a rank that joins would wait for others that "
            "train: state.sync() builds exchanges, and gives them what the ranks hold"
        )
    if optimizer is None:
        settings = settings.of_tape(learning_rate)
    else:
        scales = compat.is_loss_scaling(optimizer)
        optimizer = compat.stepping_of(optimizer)
        settings = settings.of_optimizer(optimizer)
        if scales:
            settings = loss_scaling.settings_for(settings)
    if not settings.needs_exchange(process_set):
        return []
    variables = local_variables.exchanged(optimizer, variables)
    slices = {id(compat.tensor_of(variable)) for variable in sliced}
    are_sliced = [id(compat.tensor_of(variable)) in slices for variable in variables]
    return exchange_of(
        variables, are_sliced, settings, process_set=process_set, owner=optimizer
    ).variables
