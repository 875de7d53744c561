"""Residuals in an optimizer's state_dict(): saved by each rank, loaded by the same rank."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.log import logger
from hvd_sparse.planning.over_time import PlanOverTime
from hvd_sparse.pytorch import masks
from hvd_sparse.pytorch.gradient_exchange import GradientExchange
from hvd_sparse.pytorch.local_steps import LocalSteps
from hvd_sparse.pytorch.shards import shard_of
from hvd_sparse.state.saved_exchange import (
    mismatch_of,
    mismatch_of_unit,
    misplacement_of,
    taken_up,
)

KEY = "hvd_sparse"
_VERSION = 4
_ADVICE = (
    "To go on with the rest of the state and empty residuals (what was not sent yet is lost), load "
    "optimizer.exchange.reset_residual(state_dict) instead"
)


class _Progress(NamedTuple):
    """A rank's progress, as sent to its peers.

    Attributes:
        job_rank: Rank in the whole job.
        step: Number of steps exchanged so far.
        tuning: The tuner's state, from `Tuner.state`.
        states: The sparsifier's state of each unit of selection: float32, [4].
        pending: True if its residuals may be added to dense gradients of the next step.
        begins: True if its velocities are the optimizer's own momentum, and no step has followed.
    """

    job_rank: int
    step: int
    tuning: str | None
    states: dict[str, NDArray[Any]]
    pending: bool
    begins: bool


class LossNote:
    """Warns once that torch.distributed.checkpoint leaves out an optimizer's residuals.

    Its state_dict module keeps "state" and "param_groups" of an optimizer's state, by parameter and
    as one state of all ranks, and drops the rest without a word.

    Attributes:
        may_be_apart: True if the exchange's state can be saved beside the optimizer's. Then the
            warning waits for the next step.
    """

    def __init__(self) -> None:
        self.may_be_apart = False
        self._told = self._is_due = False

    def note(self) -> None:
        """Notes that state is saved or loaded; warns if that module is among the callers."""
        frame = None if self._told else sys._getframe(1)
        while frame is not None:
            if frame.f_globals.get("__name__") == "torch.distributed.checkpoint.state_dict":
                self._is_due = True
                if not self.may_be_apart:
                    self.step()
                return
            frame = frame.f_back

    def settle(self) -> None:
        """Notes that the exchange's state is saved or loaded by itself."""
        self._is_due = False

    def step(self) -> None:
        """Logs the warning, if it is due."""
        if not self._is_due:
            return
        self._is_due, self._told = False, True
        keeps = (
            "Pass the exchange itself to torch.distributed.checkpoint, too: "
            '{"model": ..., "optimizer": ..., "residuals": optimizer.exchange}'
            if self.may_be_apart
            else "save_checkpoint() keeps them, as do the optimizer's own state_dict() and "
            "load_state_dict() on every rank"
        )
        logger.warning(
            "get_optimizer_state_dict() and set_optimizer_state_dict() of "
            "torch.distributed.checkpoint leave out what hvd_sparse keeps of an optimizer: "
            "residuals, velocities, thresholds and plan are not in such a state dict, and loading "
            "one empties the residuals. %s",
            keeps,
        )


def without_residuals(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Returns a shallow copy of a state dict, without the exchange's state; it loads anywhere."""
    return {key: value for key, value in state_dict.items() if key != KEY}


def reset(exchange: GradientExchange | None, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Like `without_residuals`, but keeps the state common to all ranks, if it fits here.

    So a rank that loads another rank's state without residuals continues at that rank's step, and
    with its plan.
    """
    emptied = without_residuals(state_dict)
    if exchange is None or KEY not in state_dict:
        return emptied
    theirs = state_dict[KEY]
    own = {"residuals": {}, "velocities": {}, "rank": exchange.world.rank}
    common = {**theirs, **own}
    if _mismatch(exchange, common):
        return emptied
    return {**emptied, KEY: common}


def save(exchange: GradientExchange) -> dict[str, Any]:
    """Returns a copy of this rank's state, of types that torch.load accepts by default."""
    # First: it waits for what is in flight.
    local = exchange.local_state() if isinstance(exchange, LocalSteps) else None
    return {
        "version": _VERSION,
        "rank": exchange.world.rank,
        "size": exchange.world.size,
        "conditions": exchange.conditions,
        "layers": layers_of(exchange),
        "masks": masks.of(exchange),
        "residuals": {name: part.clone() for name, part in exchange.steps.residuals().items()},
        "velocities": {name: part.clone() for name, part in exchange.steps.velocities().items()},
        "states": {name: part.clone() for name, part in exchange.steps.state.sparsifier_states()},
        "pending": exchange.steps.pending,
        "step": exchange.steps.count,
        "lrs": exchange.rates.state(),
        "tuning": None if exchange.tuner is None else exchange.tuner.state(),
        "local": local,
    }


def check(
    exchange: GradientExchange | None, saved: dict[str, Any] | None, *, advice: str = _ADVICE
) -> None:
    """Refuses saved residuals that do not belong here, before anything has changed.

    Args:
        exchange: This rank's exchange; None if it has none.
        saved: A state from `save`, or None: a state dict without residuals fits anywhere.
        advice: A sentence that says how to continue; empty if the caller adds one.

    Raises:
        CheckpointMismatchError: Names what was saved and what is here, and says how to continue.
    """
    if saved is None:
        return
    mismatch = _mismatch(exchange, saved)
    if mismatch is not None:
        raise CheckpointMismatchError(f"{mismatch}. {advice}" if advice else mismatch)


def check_place(saved: dict[str, Any] | None, *, rank: int, size: int) -> None:
    """Like `check`, but without an exchange: checks only that this rank of so many saved it."""
    if saved is None:
        return
    mismatch = misplacement_of(saved, version=_VERSION, rank=rank, size=size)
    if mismatch is not None:
        raise CheckpointMismatchError(f"{mismatch}. {_ADVICE}")


def load(exchange: GradientExchange, saved: dict[str, Any] | None) -> None:
    """Restores a state that has passed `check`; None empties the residuals.

    Without saved velocities, the velocities continue the optimizer's own momentum.

    If compression, device or ranks per node differ, plan and thresholds are not restored. Masks
    become those with which the state was saved.
    """
    if isinstance(exchange, LocalSteps):
        exchange.load_local_state(None if saved is None else saved.get("local"))
    if saved is None:
        step = exchange.steps.count
        exchange.steps.load({}, {}, exchange.momentum.begin(exchange.parameters, step), step=step)
        return
    saved = taken_up(saved, exchange.conditions, is_rank0=exchange.world.rank == 0)
    masks.restore(exchange, saved.get("masks", {}))  # older files have none
    if exchange.tuner is not None:
        exchange.restore_tuning(saved["tuning"], step=saved["step"])
    exchange.steps.load(
        saved["residuals"],
        saved["states"],
        saved.get("velocities") or exchange.momentum.begin(exchange.parameters, saved["step"]),
        step=saved["step"],
        pending=saved.get("pending", not saved.get("waiting")),  # older files name layers
    )
    exchange.rates.load(saved["lrs"])


def adopt_progress(exchange: GradientExchange, rank: int) -> None:
    """Adopts the step, the plan and the masks of one rank; residuals stay. Collective.

    Call it after the optimizer's state was broadcast from that rank. Velocities stay if all ranks
    have taken the same steps. Where that rank, or this one, has come by its momentum otherwise,
    they begin from the optimizer's own, which that rank has sent.

    An interval of local steps begins, from weights that are broadcast as well.

    Thresholds also stay if they were found with that plan until that step; otherwise the rank's are
    adopted, and with them its count of random draws.

    Args:
        exchange: The exchange, between two steps.
        rank: The rank in the whole job; if it has no part in the exchange, the first one that has.
    """
    tuner, state = exchange.tuner, exchange.steps.state
    own = _Progress(
        job_rank=exchange.world.job_rank,
        step=exchange.steps.count,
        tuning=None if tuner is None else tuner.state(),
        states={name: part.numpy() for name, part in state.sparsifier_states()},
        pending=exchange.steps.pending,
        begins=exchange.momentum.has_begun_at(exchange.steps.count),
    )
    reports: list[_Progress] = exchange.world.allgather_object(own, _Progress)
    source = next((at for at, one in enumerate(reports) if one.job_rank == rank), 0)
    theirs = reports[source]
    masks.adopt(exchange, masks.of(exchange), source)
    mine = save(exchange)
    # At another step the count of draws differs, as on a rank that alone loaded an older state.
    alike = (theirs.step, theirs.tuning) == (mine["step"], mine["tuning"])
    found = mine["states"] if alike else {}
    thresholds = {name: part for name, part in found.items() if part.any()}
    pending = any(one.pending for one in reports)
    common: dict[str, Any] = {
        "step": theirs.step,
        "tuning": theirs.tuning,
        "pending": pending,
        "local": None,
    }
    states = {name: torch.from_numpy(part) for name, part in theirs.states.items()}
    if exchange.momentum.moved and (not alike or own.begins or theirs.begins):
        common["velocities"] = {}
    load(exchange, {**mine, **common, "states": {**states, **thresholds}})
    if isinstance(exchange, LocalSteps):
        exchange.adopt_local_state(mine["local"], source)


def layers_of(exchange: GradientExchange) -> dict[str, int]:
    """Returns the number of elements of each layer that can be sparse, by name."""
    return {layer.name: layer.numel for layer in exchange.layers}


def _mismatch(exchange: GradientExchange | None, saved: dict[str, Any]) -> str | None:
    layers = {} if exchange is None else layers_of(exchange)
    world = None if exchange is None else exchange.world
    mismatch = mismatch_of(saved, version=_VERSION, world=world, layers=layers)
    if mismatch is not None:
        return mismatch
    assert exchange is not None
    numels = {name: shard_of(param).numel() for name, param in exchange.parameters.items()}
    mismatch = masks.mismatch_of(exchange, saved.get("masks", {}))
    if mismatch is not None:
        return mismatch
    for parts, numel_of, what, why in (
        (saved["residuals"], layers, "residual", ""),
        (saved.get("velocities", {}), numels, "velocity", ", or of another model"),
    ):
        for name, part in parts.items():
            fits = isinstance(part, torch.Tensor) and part.numel() == numel_of.get(name)
            if not fits or part.dtype != torch.float32:
                return f"the saved {what} of '{name}' is damaged{why}"
    mismatch = _mismatch_of_interval(exchange, saved.get("local"), numels)
    return mismatch or mismatch_of_unit(saved, exchange.conditions)


def require_met(local: dict[str, Any] | None) -> None:
    """Raises CheckpointMismatchError if the state of local steps was saved amid an interval."""
    if local is not None and local["amid"]:
        raise CheckpointMismatchError(
            f"the checkpoint was saved amid an interval, {local['interval']['taken']} local steps "
            'after the ranks met, and residuals="spread" would lose these: save after meet(), or '
            'load with residuals="own" or "reset"'
        )


def _mismatch_of_interval(
    exchange: GradientExchange, local: dict[str, Any] | None, numels: dict[str, int]
) -> str | None:
    """Returns why the state of an interval of local steps does not fit; None if it does."""
    if local is None:
        return None
    if local.get("plan") is not None:
        try:
            PlanOverTime.from_json(local["plan"]["plan"])
        except InvalidArgumentError as error:
            return f"the saved plan does not fit: {error}"
    if not local.get("amid"):
        return None
    if not isinstance(exchange, LocalSteps):
        return (
            f"the state was saved amid an interval, {local['interval']['taken']} local steps after "
            "the ranks met, and the compression has no local_steps now"
        )
    for name, common in local["common"].items():
        if not isinstance(common, torch.Tensor) or common.numel() != numels.get(name):
            return f"the saved common weights of '{name}' are damaged, or of another model"
    return None
