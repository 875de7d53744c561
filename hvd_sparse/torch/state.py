"""Residuals in an optimizer's state_dict(): saved by each rank, loaded by the same rank."""

from __future__ import annotations

from typing import Any

import torch

from hvd_sparse.buckets import Layer
from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.settled import Settled
from hvd_sparse.torch.gradient_exchange import GradientExchange

KEY = "hvd_sparse"
_VERSION = 3
_ADVICE = (
    "To go on with the rest of the state and empty residuals (what was not sent yet is lost), load "
    "optimizer.reset_residual(state_dict) instead"
)


def without_residuals(state_dict: dict[str, Any]) -> dict[str, Any]:
    """A copy of a state dict that loads anywhere; the tensors in it are shared."""
    return {key: value for key, value in state_dict.items() if key != KEY}


def save(exchange: GradientExchange) -> dict[str, Any]:
    """What belongs to this rank's exchange, copied; of types that torch.load takes by default."""
    return {
        "version": _VERSION,
        "rank": exchange.world.rank,
        "size": exchange.world.size,
        "layers": layers_of(exchange),
        "residuals": {name: part.clone() for name, part in exchange.residuals()},
        "states": {name: part.clone() for name, part in exchange.memories()},
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


def load(exchange: GradientExchange, saved: dict[str, Any] | None) -> None:
    """Takes up what `check` has found to fit; None empties the residuals."""
    if saved is None:
        exchange.load({}, {})
        return
    if exchange.tuner is not None and saved.get("tuning") is not None:
        exchange.go_on_as(saved["tuning"])
    exchange.load(saved["residuals"], saved["states"])
    exchange.steps = saved["step"]
    exchange.rates.load(saved["lrs"])


def layers_of(exchange: GradientExchange) -> dict[str, int]:
    """Elements of each layer that can travel sparse, by name."""
    return {layer.name: layer.numel for layer in exchange.layers}


def _mismatch(exchange: GradientExchange | None, saved: dict[str, Any]) -> str | None:
    if saved.get("version") != _VERSION:
        return (
            f"the residuals were saved in format {saved.get('version')} and this version reads "
            f"format {_VERSION}"
        )
    if exchange is None:
        return (
            f"the residuals were saved by rank {saved['rank']} of {saved['size']}, and this "
            "process exchanges no gradients"
        )
    world = exchange.world
    if saved["size"] != world.size:
        return f"the residuals were saved by {saved['size']} ranks and there are {world.size} now"
    if saved["rank"] != world.rank:
        return f"the residuals were saved by rank {saved['rank']} and this is rank {world.rank}"
    theirs, ours = saved["layers"], layers_of(exchange)
    if theirs != ours:
        return (
            "the residuals were saved for another model or compression: saved are "
            f"{_some(theirs, ours)}, here are {_some(ours, theirs)}"
        )
    try:
        if saved.get("tuning") is not None:
            layers = [Layer(name, numel) for name, numel in ours.items()]
            Settled.from_json(saved["tuning"]).check(layers, size=world.size)
    except InvalidArgumentError as error:
        return f"the saved tuning does not fit: {error}"
    for name, residual in saved["residuals"].items():
        fits = isinstance(residual, torch.Tensor) and residual.numel() == ours.get(name)
        if not fits or residual.dtype != torch.float32:
            return f"the saved residual of '{name}' is damaged"
    return None


def _some(layers: dict[str, int], others: dict[str, int]) -> str:
    lacking = [(name, numel) for name, numel in layers.items() if others.get(name) != numel]
    shown = ", ".join(f"'{name}' ({numel})" for name, numel in lacking[:3])
    return (shown or "fewer") + (", ..." if len(lacking) > 3 else "")
