"""The user's functions for local steps of Keras 3 optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.tensorflow import compat
from hvd_sparse.tensorflow.local_steps import ATTRIBUTE, LocalSteps


def meet(optimizer: Any, model: Any = None) -> None:
    """Averages the ranks' weights now, amid an interval of local steps. Collective.

    For the end of training, and before checkpoints. After a meeting it does nothing.

    Args:
        optimizer: A Keras 3 optimizer with a compression that has local_steps.
        model: A model whose non-trainable variables of floating-point numbers Horovod averages,
            too: running statistics of batch normalisation. Those that are equal on all ranks stay
            as they are, bit for bit. None leaves each rank its own.

    Raises:
        InvalidArgumentError: The compression has no local_steps.
        RanksDisagreeError: The ranks have not taken as many local steps from equal weights.
        ExchangeFailedError: Another rank ended the exchange.
        tf.errors.InvalidArgumentError: A rank's weights are not finite; all ranks have the last
            common weights again.
        tf.errors.AbortedError: Another rank died, or ended the exchange, in this meeting.
    """
    local = _local_steps_of(optimizer, "meet()")
    local.meet()
    if model is not None:
        others = model.non_trainable_variables
        local.average([one for one in others if compat.dtype_of(one).is_floating], "statistics")


@contextmanager
def common_weights(optimizer: Any) -> Iterator[None]:
    """Lends the model the last common weights, the same on all ranks, within the context.

    Without it, between two meetings, the model has this rank's own weights. Do not step within.

    Args:
        optimizer: A Keras 3 optimizer with a compression that has local_steps.

    Raises:
        InvalidArgumentError: The compression has no local_steps.
    """
    with _local_steps_of(optimizer, "common_weights()").common_weights():
        yield


def report_loss(optimizer: Any, loss: Any) -> None:
    """Reports the loss of a local step, for AdaComm; also within a tf.function.

    Args:
        optimizer: A Keras 3 optimizer with a compression that has local_steps.
        loss: A number, or a tensor with one element.

    Raises:
        InvalidArgumentError: The compression has no local_steps.
    """
    _local_steps_of(optimizer, "report_loss()").note_loss(loss)


def local_steps(optimizer: Any) -> int:
    """Returns the number of local steps from one meeting to the next.

    With AdaComm it changes; lower the learning rate once it is 1, as its authors do.

    Args:
        optimizer: A Keras 3 optimizer with a compression that has local_steps.

    Raises:
        InvalidArgumentError: The compression has no local_steps.
    """
    return _local_steps_of(optimizer, "local_steps()").length


def _local_steps_of(optimizer: Any, caller: str) -> LocalSteps:
    local = getattr(compat.stepping_of(optimizer), ATTRIBUTE, None)
    if not isinstance(local, LocalSteps):
        raise InvalidArgumentError(f"{caller} needs a compression with local_steps")
    return local
