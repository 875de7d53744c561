"""Checkpoints of a whole job: the state that all ranks share, and each rank's residuals.

hvd_sparse/state/checkpoint.py describes the folder. Here shared.pt holds the model, the optimizer
and the user's extra objects; rank-3-of-16.pt holds rank 3's residuals, thresholds, plan and random
number states.
"""

from __future__ import annotations

import copy
import io
import os
import re
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.pytorch import masks, state
from hvd_sparse.pytorch.attachment import attachment_of
from hvd_sparse.pytorch.gradient_exchange import GradientExchange
from hvd_sparse.pytorch.host import TorchHost
from hvd_sparse.pytorch.local_steps import LocalSteps
from hvd_sparse.pytorch.parameters import check_kind
from hvd_sparse.pytorch.renewal import residuals_of, summing_over
from hvd_sparse.state.checkpoint import Found, Job, advising, checked_folder, checked_policy
from hvd_sparse.state.saved_exchange import require_unit
from hvd_sparse.state.spreading import SavedSum, read_all

SUFFIX = ".pt"

# Matches the reason in a refusal of torch.load, which also advises to load without the restriction.
_REFUSAL = re.compile(r"(?:Trying to load|Unsupported|Can only)[^\n]*")


def save(
    host: TorchHost,
    folder: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    extra: dict[str, Any],
) -> None:
    """Writes a checkpoint with `host`, that of all ranks; see `TorchExchange.save_checkpoint`."""
    refuse_if_busy(optimizer, "save_checkpoint()")
    job = Job(host.world())
    with job.fail_together(InvalidArgumentError):
        checked_folder(folder)
        check_kind("model", model, torch.nn.Module)
        _check_extra(extra)
    exchange = _exchange_of(optimizer)
    whole = optimizer.state_dict()
    own = {"sparse": whole.get(state.KEY), "random": _random(_device_of(optimizer))}
    if isinstance(exchange, LocalSteps):  # each rank has its own
        own["local"] = parts_of(model, whole)
    shared = {
        "model": model.state_dict(),
        "optimizer": state.without_residuals(whole),
        "extra": extra,
    }
    with exchange.common_weights() if isinstance(exchange, LocalSteps) else nullcontext():
        job.write(
            folder,
            step=None if exchange is None else exchange.steps.count,
            own=lambda path: write_file(path, own),
            shared=lambda path: write_file(path, shared),
        )


def load(
    host: TorchHost,
    folder: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    residuals: str,
) -> dict[str, Any] | None:
    """Loads what `save` wrote, with the same `host`; see `TorchExchange.load_checkpoint`."""
    refuse_if_busy(optimizer, "load_checkpoint()")
    job = Job(host.world())
    policy = ""
    with job.fail_together(InvalidArgumentError):
        policy = checked_policy(residuals)
        checked_folder(folder)
        check_kind("model", model, torch.nn.Module)
    job.agree("load_checkpoint", residuals=policy)
    exchange, device = _exchange_of(optimizer), _device_of(optimizer)
    found = job.find(folder)
    if found is None:
        return None
    shared: dict[str, Any] = {}
    sparse: dict[str, Any] | None = None
    random = _random(device)
    with job.fail_together(CheckpointMismatchError):
        shared = read_file(found.shared_file(SUFFIX))
    weights, whole = shared["model"], shared["optimizer"]
    if policy == "own":
        with job.fail_together(CheckpointMismatchError), advising():
            own = read_file(job.own_file(found, SUFFIX))
            sparse = own["sparse"]
            state.check(exchange, sparse, advice="")
            random = own["random"]
            if "local" in own and isinstance(exchange, LocalSteps):
                weights, whole = own["local"]["model"], own["local"]["optimizer"]
    elif policy == "spread":
        sparse = _spread(job, found, exchange, host)
    whole = whole if sparse is None else {**whole, state.KEY: sparse}
    before = (_copies(model.state_dict()), optimizer.state_dict(), _random(device))

    def restore(
        weights: dict[str, Any], whole: dict[str, Any], random: dict[str, torch.Tensor]
    ) -> None:
        model.load_state_dict(weights)
        optimizer.load_state_dict(whole)
        _set_random(random, device)

    with job.fail_together(CheckpointMismatchError, undo=lambda: restore(*before)):
        restore(weights, whole, random)
    extra: dict[str, Any] = shared["extra"]
    return extra


def parts_of(model: torch.nn.Module, whole: dict[str, Any]) -> dict[str, Any]:
    """Returns what a rank that takes local steps has of its own besides its exchange's state.

    Args:
        model: The model.
        whole: The optimizer's state dict.
    """
    return {"model": _copies(model.state_dict()), "optimizer": state.without_residuals(whole)}


def write_file(stem: Path, content: dict[str, Any]) -> None:
    """Writes a file of a checkpoint, and ensures that it can be read.

    Args:
        stem: The file's path, without `SUFFIX`.
        content: Objects of types that `torch.load(weights_only=True)` accepts.

    Raises:
        CheckpointMismatchError: `content` holds another type.
        OSError: The file cannot be written.
    """
    path = Path(f"{stem}{SUFFIX}")
    with path.open("wb") as file:  # torch's own files do not say why writing failed
        torch.save(content, file)
    read_file(path, mmap=True)  # fails now if model or optimizer hold a refused type


def read_file(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    """Loads a file to the CPU, since it may come from a GPU that this process does not see.

    Args:
        path: The file.
        mmap: True to leave the content of tensors in the file.

    Raises:
        CheckpointMismatchError: The file is damaged, or holds objects that could run code.
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


def refuse_if_busy(optimizer: object, call: str) -> None:
    """Raises an error if an optimizer's exchange has ended, or is amid a step, which ends it.

    The other ranks learn of that from the exchange, and may never make the call: so this comes
    before any message between the ranks.
    """
    attachment = attachment_of(optimizer)
    if attachment is not None and attachment.exchange is not None:
        attachment.exchange.check()
        attachment.refuse_if_busy(call)


def _check_extra(extra: dict[str, Any]) -> None:
    """Refuses what `read_file` would refuse, before any file is written."""
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
    """Copies a model's state to the CPU, where loading does not change it."""
    return {
        name: one.to("cpu", copy=True)
        if isinstance(one, torch.Tensor) and not is_lazy(one)
        else copy.deepcopy(one)
        for name, one in weights.items()
    }


def _device_of(optimizer: torch.optim.Optimizer) -> torch.device:
    """Returns the device of the optimizer's first parameter."""
    params = (param for group in optimizer.param_groups for param in group["params"])
    device: torch.device = next(params).device
    return device


def _random(device: torch.device) -> dict[str, torch.Tensor]:
    """Returns this rank's random number states: the CPU's, and the GPU's if `device` is one."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_random(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Restores what `_random` returned; a GPU's state if one was saved and `device` is a GPU."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def _exchange_of(optimizer: torch.optim.Optimizer) -> GradientExchange | None:
    attachment = attachment_of(optimizer)
    if attachment is None:
        return None
    attachment.renewal.renew()
    return attachment.exchange


def _spread(
    job: Job, found: Found, exchange: GradientExchange | None, host: TorchHost
) -> dict[str, Any]:
    """Returns a state with this rank's share of the sum of all saved residuals."""
    if not all(job.allgather(exchange is not None and exchange.world.size == job.size)):
        raise CheckpointMismatchError(
            'residuals="spread" needs an optimizer that all ranks of the job, two at least, '
            'exchange; take residuals="reset"'
        )
    assert exchange is not None
    total = SavedSum(state.layers_of(exchange))
    conditions = exchange.conditions
    common = read_all(
        *(job, found, SUFFIX), lambda path: _add(read_file(path)["sparse"], total, conditions)
    )
    if common is not None:
        common = {**common, "masks": masks.as_masks(common["masks"])}
    shares = total.share(summing_over(host), rank=job.rank, size=job.size)
    share = {name: torch.from_numpy(part) for name, part in shares.items()}
    return {
        **state.save(exchange),
        **(common or {}),
        "residuals": share,
        "velocities": {},
        "states": {},
        "pending": True,
        "tuning": None,
    }


def _add(
    saved: Mapping[str, Any] | None, total: SavedSum, conditions: Mapping[str, str]
) -> dict[str, Any] | None:
    """Adds a rank's residuals to the sum; returns the state that all ranks have in common."""
    if saved is None:  # by a single rank, which exchanges nothing
        return None
    state.require_met(saved.get("local"))
    require_unit(saved, conditions)
    total.add(saved["layers"], residuals_of(saved))
    arrays = masks.as_arrays(saved.get("masks", {}))
    return {"step": saved["step"], "lrs": saved["lrs"], "masks": arrays}
