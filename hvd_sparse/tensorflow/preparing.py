"""prepare: builds an exchange before its first step, so that its state can be restored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_sparse.errors import UnsupportedError
from hvd_sparse.ranks.world import in_elastic_job
from hvd_sparse.tensorflow import compat, local_variables, loss_scaling
from hvd_sparse.tensorflow.registry import exchange_of
from hvd_sparse.tensorflow.settings import Settings


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
        variables: The variables, in the order in which the tape or the optimizer will get them;
            for a tape without local ones, which an optimizer leaves out itself.
        compression: The compression that the tape or the optimizer gets.
        optimizer: An optimizer from `hvd.DistributedOptimizer`, or `model.optimizer`, which
            `compile` may have wrapped for loss scaling; None if a tape exchanges.
        learning_rate: The learning rate that the tape gets.
        sliced: The variables among them whose gradients are IndexedSlices, such as embeddings.
        process_set: Horovod's process set; ranks outside it have no state.
        **options: Horovod's op, gradient_predivide_factor and sparse_as_dense, with the values
            that the tape or the optimizer gets.

    Returns:
        The state as float32 variables, which are the residual, the sparsifier's states of the
        layers, the learning rate, if the residual follows it, and the velocity, if momentum is
        corrected. If all gradients are always sent dense, and for a single rank, only the velocity.

    Raises:
        InvalidArgumentError: An argument lies outside its limits, or differs between ranks.
        UnsupportedError: A sparse exchange does not support an argument; or the job is elastic.
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
    settings = settings.among(process_set)
    variables = local_variables.exchanged(optimizer, variables)
    slices = {id(compat.tensor_of(variable)) for variable in sliced}
    are_sliced = [id(compat.tensor_of(variable)) in slices for variable in variables]
    return exchange_of(
        variables, are_sliced, settings, process_set=process_set, owner=optimizer
    ).variables
