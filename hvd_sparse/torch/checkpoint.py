"""One checkpoint of a job: what all ranks share, and what each rank has yet to send.

    FOLDER/shared.pt                 model, optimizer, and what else the user keeps
    FOLDER/rank-3-of-16.pt           rank 3's residuals, thresholds, plan and random numbers

A folder is complete or not there: it is written under another name, and gets its own when all ranks
are through. It may lie on a file system that all machines share, or on each machine's own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch

from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.torch import state
from hvd_sparse.torch.attachment import attachment_of
from hvd_sparse.torch.gradient_exchange import GradientExchange

_POLICIES = ("own", "spread", "reset")
_SHARED = "shared.pt"
_RANK_FILE = re.compile(r"rank-(\d+)-of-(\d+)\.pt")


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
            of types that `torch.load` takes by default.

    Raises:
        GradientInFlightError: Gradients have arrived and were not exchanged yet.
        OSError: On every rank, if one cannot write.
    """
    folder = Path(folder)
    exchange = _exchange_of(optimizer)
    if exchange is not None:
        exchange.refuse_if_busy(
            "save_checkpoint() was called after loss.backward() but before optimizer.step() or "
            "optimizer.synchronize()"
        )
    whole = optimizer.state_dict()
    making, owns = _make(folder)
    with _together(OSError):
        own = {"sparse": whole.get(state.KEY), "random": torch.get_rng_state()}
        torch.save(own, making / f"rank-{hvd.rank()}-of-{hvd.size()}.pt")
        if owns:
            shared = {
                "model": model.state_dict(),
                "optimizer": state.without_residuals(whole),
                "extra": extra,
            }
            torch.save(shared, making / _SHARED)
    with _together(OSError):
        if owns:
            _put_in_place(making, folder)


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
        What `save_checkpoint` was given as `extra`; None if there is no checkpoint on any rank.

    Raises:
        InvalidArgumentError: `residuals` is none of the three.
        CheckpointMismatchError: On every rank, if the checkpoint does not fit, a rank's file is
            missing, or only some ranks find one. Nothing has changed.
    """
    if residuals not in _POLICIES:
        raise InvalidArgumentError(
            f"residuals must be one of {', '.join(_POLICIES)}, got {residuals!r}"
        )
    exchange = _exchange_of(optimizer)
    folder = Path(folder)
    if not folder.exists():
        folder = folder.with_name(f"{folder.name}.old")  # a job died between two renames
    if not any(_everywhere((folder / _SHARED).exists())):
        return None
    shared: dict[str, Any] = {}
    sparse: dict[str, Any] | None = None
    with _together(CheckpointMismatchError):
        shared = torch.load(_existing(folder / _SHARED))
    if residuals == "own":
        with _together(CheckpointMismatchError):
            own = torch.load(_existing(folder / f"rank-{hvd.rank()}-of-{hvd.size()}.pt"))
            sparse = own["sparse"]
            state.check(exchange, sparse)
    elif residuals == "spread":
        sparse = _spread(folder, exchange)
    with _together(CheckpointMismatchError):
        model.load_state_dict(shared["model"])
        whole = shared["optimizer"]
        optimizer.load_state_dict(whole if sparse is None else {**whole, state.KEY: sparse})
    if residuals == "own":
        torch.set_rng_state(own["random"])
    extra: dict[str, Any] = shared["extra"]
    return extra


def _exchange_of(optimizer: torch.optim.Optimizer) -> GradientExchange | None:
    attachment = attachment_of(optimizer)
    return None if attachment is None else attachment.exchange


def _make(folder: Path) -> tuple[Path, bool]:
    """A new folder beside `folder`, seen by all ranks; and whether this rank has made it.

    The job's first rank makes it, and the first one of each machine that cannot see that.
    """
    unique = hvd.broadcast_object(uuid.uuid4().hex, 0, name="hvd_sparse.checkpoint.unique")
    making = folder.with_name(f"{folder.name}.making-{unique}")
    owns = False
    for may in (hvd.rank() == 0, hvd.rank() > 0 and hvd.local_rank() == 0):
        with _together(OSError):
            if may and not making.exists():
                for left in folder.parent.glob(f"{folder.name}.making-*"):
                    shutil.rmtree(left, ignore_errors=True)
                making.mkdir(parents=True)
                owns = True
    return making, owns


def _put_in_place(made: Path, folder: Path) -> None:
    old = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(old)
    made.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _spread(folder: Path, exchange: GradientExchange | None) -> dict[str, Any]:
    """State with this rank's share of the sum of all saved residuals."""
    if not all(_everywhere(exchange is not None and exchange.world.size == hvd.size())):
        raise CheckpointMismatchError(
            'residuals="spread" needs an optimizer that all ranks of the job, two at least, '
            'exchange; take residuals="reset"'
        )
    assert exchange is not None
    seen = {
        int(match[1]): (path, int(match[2]))
        for path in folder.glob("rank-*.pt")
        if (match := _RANK_FILE.fullmatch(path.name))
    }
    by_rank = _everywhere({rank: size for rank, (_, size) in seen.items()})
    found = {rank: size for ranks in by_rank for rank, size in ranks.items()}
    size = max(found.values(), default=0)
    missing = sorted(set(range(size)) - set(found))
    if size == 0 or missing or set(found.values()) != {size}:
        raise CheckpointMismatchError(
            f"{folder} must hold the files of all ranks that saved it, and lacks those of ranks "
            f"{missing or 'unknown'} of {size}"
        )
    layers = state.layers_of(exchange)
    total = {name: torch.zeros(numel, dtype=torch.float64) for name, numel in layers.items()}
    common = None
    with _together(CheckpointMismatchError):
        for rank, (path, _) in seen.items():
            if min(i for i, ranks in enumerate(by_rank) if rank in ranks) == hvd.rank():
                common = _add(torch.load(path)["sparse"], total) or common
    common = next((one for one in _everywhere(common) if one is not None), {})
    share = {}
    for name, part in total.items():
        summed = hvd.allreduce(part, op=hvd.Sum, name=f"hvd_sparse.checkpoint.{name}")
        mine = torch.arange(summed.numel()) % hvd.size() == hvd.rank()
        share[name] = torch.where(mine, summed, 0.0).float()
    return {**state.save(exchange), **common, "residuals": share, "states": {}, "tuning": None}


def _add(saved: Mapping[str, Any] | None, total: dict[str, torch.Tensor]) -> dict[str, Any] | None:
    """Adds a rank's residuals; what the ranks have in common."""
    if saved is None:  # of a single rank, which exchanges nothing
        return None
    here = {name: part.numel() for name, part in total.items()}
    if saved["layers"] != here:
        raise CheckpointMismatchError(
            f"the residuals were saved for other layers: saved are {saved['layers']}, here are "
            f"{here}"
        )
    for name, residual in saved["residuals"].items():
        total[name] += residual.double()
    return {"step": saved["step"], "lrs": saved["lrs"]}


def _existing(path: Path) -> Path:
    if not path.exists():
        raise CheckpointMismatchError(
            f"{path} is missing: the checkpoint was written by another number of ranks (then "
            'residuals="spread" or "reset" takes it), or lies on another machine'
        )
    return path


def _everywhere(thing: Any) -> list[Any]:
    """Every rank's thing."""
    everybody: list[Any] = hvd.allgather_object(thing, name="hvd_sparse.checkpoint")
    return everybody


@contextlib.contextmanager
def _together(kind: type[Exception]) -> Iterator[None]:
    """What fails on one rank fails on all of them; on the others with an error of this kind."""
    problem: Exception | None = None
    try:
        yield
    except Exception as error:
        problem = error
    told = _everywhere(None if problem is None else f"{type(problem).__name__}: {problem}")
    if problem is not None:
        raise problem
    for rank, text in enumerate(told):
        if text is not None:
            raise kind(f"rank {rank} could not go on: {text}")
