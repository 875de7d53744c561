"""Each rank's own state, beside a checkpoint that a training framework writes once for all ranks.

    FOLDER/rank-3-of-16.pt   rank 3's residuals, thresholds and plan; where ranks take local steps,
                             its own weights and moments, too

hvd_sparse/state/checkpoint.py describes the other files of the folder. The framework's own file
holds weights and the optimizer's state without residuals, for all ranks: those of rank 0.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from hvd_sparse.ddp.host import GroupHost
from hvd_sparse.ddp.modules import module_of
from hvd_sparse.errors import CheckpointMismatchError
from hvd_sparse.pytorch import state
from hvd_sparse.pytorch.attachment import require_attachment
from hvd_sparse.pytorch.checkpoint import SUFFIX, parts_of, read_file, write_file
from hvd_sparse.pytorch.local_steps import LocalSteps
from hvd_sparse.state.checkpoint import Found, Job, checked_policy

_OWN = "model and optimizer"  # what a rank that takes local steps has of its own

NAME = "hvd_sparse"  # of the folder in, or the suffix beside, a framework's checkpoint

_ADVICE = (
    'Pass residuals="reset" to go on with the rest of the state and empty residuals (what was not '
    "sent yet is lost)"
)


def checked(residuals: object) -> str:
    """Returns a policy for saved residuals, "own" or "reset"; refuses any other."""
    return checked_policy(residuals, ("own", "reset"))


def save(
    folder: str | os.PathLike[str], model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Writes every rank's own state, between two steps. Collective.

    Args:
        folder: The folder to write, replaced if it exists.
        model: The optimizer's model, in DistributedDataParallel or not.
        optimizer: An attached optimizer.

    Raises:
        GradientInFlightError: Gradients have arrived but are not exchanged yet.
        ExchangeFailedError: The exchange has ended; the ranks may not have taken the same steps.
        OSError: On every rank, if one cannot write.
    """
    exchange = require_attachment(optimizer).exchange
    if exchange is None:  # a single rank, which exchanges nothing
        return
    exchange.check()
    exchange.refuse_if_busy("a checkpoint was saved after loss.backward() but before step()")
    whole = optimizer.state_dict()
    own = whole[state.KEY]
    if isinstance(exchange, LocalSteps):
        own = {**own, _OWN: parts_of(module_of(model), whole)}
    Job(GroupHost(call="saving a checkpoint").world()).write(
        folder,
        step=exchange.steps.count,
        own=lambda stem: write_file(stem, own),
        shared=lambda _: None,
    )


def emptied(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Returns an optimizer's state dict without residuals, for the file that all ranks share."""
    if state.KEY not in state_dict:
        return state_dict
    return {**state_dict, state.KEY: {**state_dict[state.KEY], "residuals": {}, "velocities": {}}}


def restored(
    folder: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    state_dict: dict[str, Any],
    residuals: str,
) -> dict[str, Any]:
    """Returns the state dict for this rank to load, and loads its own weights. Collective.

    Args:
        folder: The folder that was passed to `save`.
        model: The optimizer's model, which has the weights of the framework's checkpoint. With
            local steps it gets this rank's own.
        optimizer: The attached optimizer that is about to load the result.
        state_dict: The state dict that all ranks share, from `emptied`; or of an optimizer that was
            not attached, which is returned as it is.
        residuals: "own": every rank continues with its own state. "reset": residuals are dropped.

    Raises:
        InvalidArgumentError: On every rank, if `residuals` differs between ranks.
        CheckpointMismatchError: On every rank, if the folder is missing or damaged, belongs to
            another checkpoint, or was saved by another number of ranks; or its residuals are no
            residuals of this exchange.
    """
    shared = state_dict.get(state.KEY)
    if shared is None:
        return state_dict
    job = Job(GroupHost(call="loading a checkpoint").world())
    job.agree("loading a checkpoint", residuals=residuals)
    if residuals == "reset":
        reset: dict[str, Any] | None = require_attachment(optimizer).reset_residual(state_dict)
        assert reset is not None
        return reset
    exchange = require_attachment(optimizer).exchange
    found = job.find(folder)
    own: dict[str, Any] = {}
    parts: dict[str, Any] | None = None
    with job.fail_together(CheckpointMismatchError):
        path = _own_file(job, found, folder, step=shared["step"])
        own = read_file(path)
        parts = own.pop(_OWN, None)
        state.check(exchange, own, advice=_ADVICE)
    if parts is None or not isinstance(exchange, LocalSteps):
        return {**state_dict, state.KEY: own}
    with job.fail_together(CheckpointMismatchError):
        module_of(model).load_state_dict(parts["model"])
    return {**parts["optimizer"], state.KEY: own}


def _own_file(job: Job, found: Found | None, folder: str | os.PathLike[str], *, step: int) -> Path:
    """Returns the path of this rank's file, if it belongs to a shared state of that step."""
    if found is None:
        raise CheckpointMismatchError(
            f"{folder} is missing, which holds what each rank had not sent yet. {_ADVICE}"
        )
    saved = found.manifest
    if saved.ranks != job.size:
        raise CheckpointMismatchError(
            f"{found.folder} was saved by {saved.ranks} ranks and there are {job.size} now. "
            f"{_ADVICE}"
        )
    if saved.step != step:
        raise CheckpointMismatchError(
            f"{found.folder} was saved after step {saved.step} of the exchange, and the checkpoint "
            f"beside it after step {step}. {_ADVICE}"
        )
    return found.rank_file(job.rank, SUFFIX)
