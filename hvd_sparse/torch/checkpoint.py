"""Checkpoints of a whole job: what all ranks share, and what each rank has yet to send.

The folder is that of hvd_sparse/state/checkpoint.py: shared.pt has the model, the optimizer, and
what else the user keeps; rank-3-of-16.pt has rank 3's residuals, thresholds, plan and random
numbers.
"""

from __future__ import annotations

import copy
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from torch.nn.parameter import is_lazy

from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.state.checkpoint import Found, Job, checked_policy
from hvd_sparse.state.spreading import SavedSum, read_all
from hvd_sparse.torch import state
from hvd_sparse.torch.attachment import attachment_of
from hvd_sparse.torch.gradient_exchange import GradientExchange
from hvd_sparse.torch.residual_sums import residuals_of, summing_over

_SUFFIX = ".pt"

# Why torch.load refuses an object, among advice to load it without the restriction.
_REFUSAL = re.compile(r"(?:Trying to load|Unsupported|Can only)[^\n]*")


def save_checkpoint(
    folder: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    **extra: Any,
) -> None:
    """Writes a checkpoint of the whole job. Collective, between two steps.

    Args:
        folder: Replaced if it is there; a job that dies meanwhile leaves the former one, as
            FOLDER or FOLDER.old.
        model: Its state_dict() is saved by one rank.
        optimizer: From `hvd.DistributedOptimizer`, sparse or not; its state_dict() is saved by one
            rank, and what belongs to the residuals by every rank.
        **extra: Kept beside them, as one rank has it: the epoch, a schedule's state_dict(), ...;
            of types that `torch.load(weights_only=True)` takes, which cannot run code: numbers,
            bool, str, None, tensors, torch.Size, torch.dtype, and dict, OrderedDict, list and tuple
            of them; others that your version of torch takes, or that both this job and the one that
            loads have given to `torch.serialization.add_safe_globals`.

    Raises:
        InvalidArgumentError: On every rank, if `extra` holds another type on one.
        GradientInFlightError: Gradients have arrived and were not exchanged yet.
        ExchangeFailedError: The exchange has ended; the ranks may not have taken the same steps.
        OSError: On every rank, if one cannot write, or another job is saving to the same folder.
            The former checkpoint is as it was.
    """
    exchange = _exchange_of(optimizer)
    if exchange is not None:
        exchange.refuse_if_ended()
        exchange.refuse_if_busy(
            "save_checkpoint() was called after loss.backward() but before optimizer.step() or "
            "optimizer.synchronize()"
        )
    whole = optimizer.state_dict()
    own = {"sparse": whole.get(state.KEY), "random": _random(_device_of(optimizer))}
    shared = {
        "model": model.state_dict(),
        "optimizer": state.without_residuals(whole),
        "extra": extra,
    }
    job = Job(hvd)
    with job.together(InvalidArgumentError):
        _check_extra(extra)
    job.write(
        folder,
        step=None if exchange is None else exchange.steps,
        own=lambda path: _write(path, own),
        shared=lambda path: _write(path, shared),
    )


def load_checkpoint(
    folder: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    residuals: str = "own",
) -> dict[str, Any] | None:
    """Takes up what `save_checkpoint` wrote. Collective, between two steps.

    Args:
        folder: As it was given to `save_checkpoint`.
        model: Like the one that was saved.
        optimizer: From `hvd.DistributedOptimizer`, over that model.
        residuals: What becomes of what was not sent yet. "own": every rank goes on with its own, as
            if nothing had happened; for as many ranks as were saved. "spread": for any number of
            ranks, the sum of all residuals is shared out, entry by entry to one rank after the
            other, so that nothing is lost but for the rounding of that sum; thresholds and plan are
            found anew. "reset": it is lost.

    Returns:
        What `save_checkpoint` was given as `extra`, its tensors on the CPU; None if there is no
        checkpoint on any rank.

    Raises:
        InvalidArgumentError: `residuals` is none of the three.
        CheckpointMismatchError: On every rank, if there is no whole checkpoint where there is a
            folder, it does not fit, or the ranks have no checkpoint in common. Nothing has changed,
            except that LAGS may measure its times anew.
    """
    policy = checked_policy(residuals)
    exchange = _exchange_of(optimizer)
    device = _device_of(optimizer)
    job = Job(hvd)
    found = job.find(folder)
    if found is None:
        return None
    shared: dict[str, Any] = {}
    sparse: dict[str, Any] | None = None
    random = _random(device)
    with job.together(CheckpointMismatchError):
        shared = _read(found.shared_file(_SUFFIX))
    if policy == "own":
        with job.together(CheckpointMismatchError):
            own = _read(job.own_file(found, _SUFFIX))
            sparse = own["sparse"]
            state.check(exchange, sparse)
            random = own["random"]
    elif policy == "spread":
        sparse = _spread(job, found, exchange)
    whole = shared["optimizer"] if sparse is None else {**shared["optimizer"], state.KEY: sparse}
    before = (_copies(model.state_dict()), optimizer.state_dict(), _random(device))

    def take_up(
        weights: dict[str, Any], whole: dict[str, Any], random: dict[str, torch.Tensor]
    ) -> None:
        model.load_state_dict(weights)
        optimizer.load_state_dict(whole)
        _set_random(random, device)

    with job.together(CheckpointMismatchError, undo=lambda: take_up(*before)):
        take_up(shared["model"], whole, random)
    extra: dict[str, Any] = shared["extra"]
    return extra


def _write(stem: Path, content: dict[str, Any]) -> None:
    path = Path(f"{stem}{_SUFFIX}")
    with path.open("wb") as file:  # torch's own files do not tell why they cannot be written
        torch.save(content, file)
    _read(path, mmap=True)  # a model or an optimizer may hold what is refused


def _read(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    """Loads a file to the CPU, since it may come from a GPU that this process does not see.

    Args:
        path: The file.
        mmap: Leaves the content of tensors in the file.

    Raises:
        CheckpointMismatchError: The file is damaged, or has objects that could run code.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:
        reason = f"{type(error).__name__}: {_reason(error)}"
        raise CheckpointMismatchError(f"{path} cannot be loaded: {reason}") from None
    return content


def _reason(error: Exception) -> str:
    refusal = _REFUSAL.search(str(error))
    return str(error) if refusal is None else refusal[0]


def _check_extra(extra: dict[str, Any]) -> None:
    """Refuses what `_read` would refuse, while there is still something to save."""
    file = io.BytesIO()
    try:
        torch.save(extra, file)
        file.seek(0)
        torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InvalidArgumentError(
            f"extra must be of types that torch.load(weights_only=True) takes: {_reason(error)}"
        ) from None


def _copies(weights: Mapping[str, Any]) -> dict[str, Any]:
    """A model's state on the CPU, which loading does not change."""
    return {
        name: one.to("cpu", copy=True)
        if isinstance(one, torch.Tensor) and not is_lazy(one)
        else copy.deepcopy(one)
        for name, one in weights.items()
    }


def _device_of(optimizer: torch.optim.Optimizer) -> torch.device:
    """Where its first parameter lies."""
    params = (param for group in optimizer.param_groups for param in group["params"])
    device: torch.device = next(params).device
    return device


def _random(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of this rank's random numbers: the CPU's, and those of a GPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_random(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Takes up what `_random` gave; a GPU's, if it was saved on one and this is one, too."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def _exchange_of(optimizer: torch.optim.Optimizer) -> GradientExchange | None:
    attachment = attachment_of(optimizer)
    if attachment is None:
        return None
    attachment.renewal.renew()
    return attachment.exchange


def _spread(job: Job, found: Found, exchange: GradientExchange | None) -> dict[str, Any]:
    """State with this rank's share of the sum of all saved residuals."""
    if not all(job.everywhere(exchange is not None and exchange.world.size == job.size)):
        raise CheckpointMismatchError(
            'residuals="spread" needs an optimizer that all ranks of the job, two at least, '
            'exchange; take residuals="reset"'
        )
    assert exchange is not None
    total = SavedSum(state.layers_of(exchange))
    common = read_all(job, found, _SUFFIX, lambda path: _add(_read(path)["sparse"], total))
    shares = total.share(summing_over(hvd.global_process_set), rank=job.rank, size=job.size)
    share = {name: torch.from_numpy(part) for name, part in shares.items()}
    return {
        **state.save(exchange),
        **(common or {}),
        "residuals": share,
        "velocities": {},
        "states": {},
        "waiting": [],
        "tuning": None,
    }


def _add(saved: Mapping[str, Any] | None, total: SavedSum) -> dict[str, Any] | None:
    """Adds a rank's residuals; what the ranks have in common."""
    if saved is None:  # of a single rank, which exchanges nothing
        return None
    total.add(saved["layers"], residuals_of(saved))
    return {"step": saved["step"], "lrs": saved["lrs"]}
