"""Residuals in an optimizer's state_dict(): saved by each rank, loaded by the same rank."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from hvd_sparse.errors import CheckpointMismatchError
from hvd_sparse.state.saved_exchange import mismatch_of, misplacement_of, taken_up
from hvd_sparse.torch.gradient_exchange import GradientExchange

KEY = "hvd_sparse"
_VERSION = 4
_ADVICE = (
    "To go on with the rest of the state and empty residuals (what was not sent yet is lost), load "
    "optimizer.reset_residual(state_dict) instead"
)


class _Progress(NamedTuple):
    """How far a rank is, as it tells the others.

    Attributes:
        job_rank: In the whole job.
        step: Exchanged so far.
        tuning: As from `Tuner.state`.
        states: By unit of selection, float32, [4]: what the sparsifier remembers of it.
        waiting: Layers that travel dense, whose residuals wait until they travel sparse.
        held: Layers of which it has residuals.
    """

    job_rank: int
    step: int
    tuning: str | None
    states: dict[str, NDArray[Any]]
    waiting: set[str]
    held: set[str]


def without_residuals(state_dict: dict[str, Any]) -> dict[str, Any]:
    """A copy of a state dict that loads anywhere; the tensors in it are shared."""
    return {key: value for key, value in state_dict.items() if key != KEY}


def reset(exchange: GradientExchange | None, state_dict: dict[str, Any]) -> dict[str, Any]:
    """The same, but with what all ranks that saved it have in common, where that fits here.

    So a rank that takes another one's state without its residuals goes on at the same step, and by
    the same plan, as the rank whose state that is.
    """
    emptied = without_residuals(state_dict)
    if exchange is None or KEY not in state_dict:
        return emptied
    theirs = state_dict[KEY]
    own = {"residuals": {}, "velocities": {}, "rank": exchange.world.rank}
    common = {**theirs, **own}
    if _mismatch(exchange, common):
        return emptied
    # What joins on the rank that saved it joins here, be it zeros.
    common["residuals"] = {name: _nothing(theirs["layers"][name]) for name in theirs["residuals"]}
    return {**emptied, KEY: common}


def save(exchange: GradientExchange) -> dict[str, Any]:
    """What belongs to this rank's exchange, copied; of types that torch.load takes by default."""
    return {
        "version": _VERSION,
        "rank": exchange.world.rank,
        "size": exchange.world.size,
        "conditions": exchange.conditions,
        "layers": layers_of(exchange),
        "residuals": {name: part.clone() for name, part in exchange.state.residuals()},
        "velocities": {name: part.clone() for name, part in exchange.state.velocities()},
        "states": {name: part.clone() for name, part in exchange.state.memories()},
        "waiting": exchange.state.waiting(),
        "step": exchange.steps,
        "lrs": exchange.rates.state(),
        "tuning": None if exchange.tuner is None else exchange.tuner.state(),
    }


def check(exchange: GradientExchange | None, saved: dict[str, Any] | None) -> None:
    """Refuses saved residuals that belong somewhere else, before anything has changed.

    Args:
        exchange: Of this rank; None where it exchanges nothing.
        saved: What `save` returned, or None: a state dict without residuals fits anywhere.

    Raises:
        CheckpointMismatchError: Names what was saved and what is here, and says how to go on.
    """
    if saved is None:
        return
    mismatch = _mismatch(exchange, saved)
    if mismatch is not None:
        raise CheckpointMismatchError(f"{mismatch}. {_ADVICE}")


def check_place(saved: dict[str, Any] | None, *, rank: int, size: int) -> None:
    """Like `check`, where there is no exchange yet: whether this rank of so many saved it."""
    if saved is None:
        return
    mismatch = misplacement_of(saved, version=_VERSION, rank=rank, size=size)
    if mismatch is not None:
        raise CheckpointMismatchError(f"{mismatch}. {_ADVICE}")


def load(exchange: GradientExchange, saved: dict[str, Any] | None) -> None:
    """Takes up what `check` has found to fit; None empties the residuals.

    Of another compression, or where the ranks lie otherwise, without plan and thresholds.
    """
    if saved is None:
        exchange.state.load({}, {})
        return
    saved = taken_up(saved, exchange.conditions, leads=exchange.world.rank == 0)
    if exchange.tuner is not None:
        exchange.go_on_as(saved["tuning"], step=saved["step"])
    exchange.state.load(
        saved["residuals"],
        saved["states"],
        saved.get("velocities"),
        saved.get("waiting", ()),  # older files do not tell: all join
    )
    exchange.steps = saved["step"]
    exchange.rates.load(saved["lrs"])


def follow(exchange: GradientExchange, rank: int) -> None:
    """Goes on at the step, and by the plan, of one rank; residuals stay. Collective.

    So do thresholds that were found with that plan until that step; where there are none, the
    rank's are taken up, which also count what was drawn at random.

    Args:
        exchange: Between two steps.
        rank: In the whole job; where it has no part in the exchange, the first one that has.
    """
    tuner, state = exchange.tuner, exchange.state
    own = _Progress(
        job_rank=exchange.world.job_rank,
        step=exchange.steps,
        tuning=None if tuner is None else tuner.state(),
        states={name: part.numpy() for name, part in state.memories()},
        waiting=set(state.waiting()),
        held={name for name, _ in state.residuals()},
    )
    told: list[_Progress] = exchange.world.allgather_object(own, _Progress)
    theirs = next((one for one in told if one.job_rank == rank), told[0])
    mine = save(exchange)
    # Another step is another count of draws: of a rank that went back alone, say.
    alike = (theirs.step, theirs.tuning) == (mine["step"], mine["tuning"])
    found = mine["states"] if alike else {}
    thresholds = {name: part for name, part in found.items() if part.any()}
    # What joins on one rank joins on all, be it zeros.
    mine["waiting"] = set.intersection(*(one.waiting for one in told))
    for name in set.union(*(one.held for one in told)) - mine["residuals"].keys():
        mine["residuals"][name] = _nothing(mine["layers"][name])
    common = {"step": theirs.step, "tuning": theirs.tuning}
    states = {name: torch.from_numpy(part) for name, part in theirs.states.items()}
    load(exchange, {**mine, **common, "states": {**states, **thresholds}})


def _nothing(numel: int) -> torch.Tensor:
    """A residual of a layer, of zeros; whatever type and device a script makes tensors of."""
    return torch.zeros(numel, dtype=torch.float32, device="cpu")


def layers_of(exchange: GradientExchange) -> dict[str, int]:
    """Elements of each layer that can travel sparse, by name."""
    return {layer.name: layer.numel for layer in exchange.layers}


def _mismatch(exchange: GradientExchange | None, saved: dict[str, Any]) -> str | None:
    layers = {} if exchange is None else layers_of(exchange)
    world = None if exchange is None else exchange.world
    mismatch = mismatch_of(saved, version=_VERSION, world=world, layers=layers)
    if mismatch is not None:
        return mismatch
    assert exchange is not None
    for name, residual in saved["residuals"].items():
        fits = isinstance(residual, torch.Tensor) and residual.numel() == layers.get(name)
        if not fits or residual.dtype != torch.float32:
            return f"the saved residual of '{name}' is damaged"
    for name, velocity in saved.get("velocities", {}).items():
        fits = isinstance(velocity, torch.Tensor) and velocity.numel() == exchange.numel_of(name)
        if not fits or velocity.dtype != torch.float32:
            return f"the saved velocity of '{name}' is damaged, or of another model"
    return None
