"""The user's functions for local steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.exchange.interval import checked_loss
from hvd_sparse.pytorch.attachment import require_attachment
from hvd_sparse.pytorch.local_steps import LocalSteps
from hvd_sparse.pytorch.parameters import check_kind


def meet(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None = None) -> None:
    """Averages the ranks' weights now, amid an interval of local steps. Collective.

    Call it at the end of training, and before checkpoints that another number of ranks may load.
    Right after a meeting it does nothing, except that it ends one that overlaps local steps.

    Args:
        optimizer: An optimizer with a compression that has local_steps.
        model: A module whose dense floating-point buffers are averaged, too, by the library that
            runs the ranks: running statistics of batch normalisation. Those that are equal on all
            ranks stay as they are, bit for bit. None leaves each rank its own.

    Raises:
        InvalidArgumentError: The compression has no local_steps, or `model` is no module.
        UnsupportedError: It is called within DDP's join(), at whose end the ranks meet.
        RanksDisagreeError: The ranks have not taken as many local steps, or their models have
            buffers of different sizes.
        NonFiniteGradientError: A rank's weights are not finite; all ranks have the last common
            weights again.
        ExchangeFailedError: Another rank ended the exchange, or died.
    """
    steps = _steps_of(optimizer, "meet()")
    if model is not None:
        check_kind("model", model, torch.nn.Module)
    if steps is not None:
        steps.core.check()
        steps.meet_now()
        if model is not None:
            steps.average(
                [
                    one.detach()
                    for one in model.buffers()
                    if one.is_floating_point() and one.layout == torch.strided
                ],
                "buffers",
            )


@contextmanager
def common_weights(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Lends the model the last common weights, the same on all ranks, within the context.

    Without it, between two meetings, the model has this rank's own weights. Do not step within.

    Args:
        optimizer: An optimizer with a compression that has local_steps.

    Raises:
        InvalidArgumentError: The compression has no local_steps.
    """
    steps = _steps_of(optimizer, "common_weights()")
    if steps is None:
        yield
        return
    with steps.common_weights():
        yield


def report_loss(optimizer: torch.optim.Optimizer, loss: float | torch.Tensor) -> None:
    """Reports the loss of a local step, for AdaComm.

    Args:
        optimizer: An optimizer with a compression that has local_steps.
        loss: A number, or a tensor with one element, which is read at the next meeting. AdaComm
            leaves out what is not finite.

    Raises:
        InvalidArgumentError: The compression has no local_steps, or `loss` is not a number.
    """
    steps = _steps_of(optimizer, "report_loss()")
    if not isinstance(loss, torch.Tensor):
        loss = checked_loss(loss)
    elif loss.numel() != 1 or loss.is_complex():
        raise InvalidArgumentError(
            f"loss must be a real tensor with one element, got {loss.dtype} of shape "
            f"{tuple(loss.shape)}"
        )
    if steps is not None:
        steps.interval.note_loss(loss.detach() if isinstance(loss, torch.Tensor) else loss)


def local_steps(optimizer: torch.optim.Optimizer) -> int:
    """Returns the number of local steps from one meeting to the next; 1 without peers.

    With AdaComm it changes; lower the learning rate once it is 1, as its authors do.

    Args:
        optimizer: An optimizer with a compression that has local_steps.

    Raises:
        InvalidArgumentError: The compression has no local_steps.
    """
    steps = _steps_of(optimizer, "local_steps()")
    return 1 if steps is None else steps.interval.length


def _steps_of(optimizer: torch.optim.Optimizer, caller: str) -> LocalSteps | None:
    steps = require_attachment(optimizer).exchange
    if steps is not None and not isinstance(steps, LocalSteps):
        raise InvalidArgumentError(f"{caller} needs a compression with local_steps")
    return steps
