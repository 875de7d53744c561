"""Checkpoints of a whole job under torch.distributed; see hvd_sparse/pytorch/checkpoint.py."""

from __future__ import annotations

import os
from typing import Any

import torch

from hvd_sparse.ddp.attaching import module_of
from hvd_sparse.ddp.host import GroupHost
from hvd_sparse.pytorch import checkpoint


def save_checkpoint(
    folder: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    **extra: Any,
) -> None:
    """Writes a checkpoint of the whole job. Collective, between two steps.

    Args:
        folder: The folder to write, replaced if it exists. A job that dies meanwhile leaves the
            former one, as FOLDER or FOLDER.old.
        model: The model, in DistributedDataParallel or not; one rank saves the state_dict() of the
            module inside.
        optimizer: Its optimizer, attached or not; one rank saves its state_dict(),
            and every rank its own residuals.
        **extra: Further objects, saved as one rank has them: the epoch, a schedule's state_dict(),
            ... They must be of types that `torch.load(weights_only=True)` accepts, which cannot run
            code: numbers, bool, str, None, tensors, torch.Size, torch.dtype, and dict, OrderedDict,
            list and tuple of them; others that your version of torch accepts, or that both this job
            and the one that loads have passed to `torch.serialization.add_safe_globals`.

    Raises:
        InvalidArgumentError: On every rank, if one gives no folder, model or optimizer, or another
            type in `extra`.
        GradientInFlightError: Gradients have arrived but are not exchanged yet.
        ExchangeFailedError: The exchange has ended; the ranks may not have taken the same steps.
        OSError: On every rank, if one cannot write, or another job is saving to the same folder.
            The former checkpoint is unchanged.
    """
    checkpoint.save(GroupHost(call="save_checkpoint()"), folder, module_of(model), optimizer, extra)


def load_checkpoint(
    folder: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    residuals: str = "own",
) -> dict[str, Any] | None:
    """Loads what `save_checkpoint` wrote. Collective, between two steps.

    Args:
        folder: The folder that was passed to `save_checkpoint`.
        model: A model like the one that was saved.
        optimizer: An optimizer of that model.
        residuals: The policy for saved residuals. "own": every rank continues with its own, as if
            nothing had happened; the number of ranks must be that of the checkpoint. "spread": the
            sum of all residuals is shared out, entry by entry to one rank after the other, for any
            number of ranks; nothing is lost but for the rounding of that sum, and thresholds and
            plan are found anew. "reset": residuals are dropped.

    Returns:
        The `extra` that was passed to `save_checkpoint`, its tensors on the CPU; None if there is
        no checkpoint on any rank.

    Raises:
        InvalidArgumentError: On every rank, if `residuals` is none of the three on one, or differs
            between ranks, or one gives no folder, model or optimizer.
        CheckpointMismatchError: On every rank, if the folder exists but holds no complete
            checkpoint, the checkpoint does not fit, or the ranks have none in common. Nothing has
            changed, except that LAGS may measure its times anew.
    """
    host = GroupHost(call="load_checkpoint()")
    return checkpoint.load(host, folder, module_of(model), optimizer, residuals=residuals)
