"""Residuals in an optimizer's state_dict(): saved by each rank, loaded by the same rank."""

from __future__ import annotations

from typing import Any

import torch

from hvd_sparse.errors import CheckpointMismatchError
from hvd_sparse.torch.gradient_exchange import GradientExchange

KEY = "hvd_sparse"
_VERSION = 2
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
        "layout": _layout(exchange),
        "residuals": [bucket.residual.clone() for bucket in exchange.buckets],
        "states": [bucket.states.clone() for bucket in exchange.buckets],
        "step": exchange.steps,
        "lrs": exchange.rates.state(),
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
        for bucket in exchange.buckets:
            bucket.reset()
        return
    for bucket, residual, states in zip(
        exchange.buckets, saved["residuals"], saved["states"], strict=True
    ):
        bucket.residual.copy_(residual)
        bucket.states.copy_(states)
    exchange.steps = saved["step"]
    exchange.rates.load(saved["lrs"])


def _layout(exchange: GradientExchange) -> list[dict[str, Any]]:
    return [
        {
            "layers": [[layer.name, layer.numel] for layer in bucket.layout.layers],
            "layer_wise": bucket.layout.layer_wise,
        }
        for bucket in exchange.buckets
    ]


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
    theirs, ours = saved["layout"], _layout(exchange)
    if theirs != ours:
        return _layout_mismatch(theirs, ours)
    for bucket, residual in zip(exchange.buckets, saved["residuals"], strict=True):
        if not isinstance(residual, torch.Tensor) or residual.shape != bucket.residual.shape:
            return f"the saved residual of bucket '{bucket.layout.name}' is damaged"
    return None


def _layout_mismatch(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> str:
    saved, here = (
        [tuple(layer) for bucket in side for layer in bucket["layers"]] for side in (theirs, ours)
    )
    if sorted(saved) == sorted(here):
        return (
            f"the residuals were saved in {len(theirs)} buckets and the same model has "
            f"{len(ours)} now: layer_wise, bucket_numel or the order of the parameters has changed"
        )
    return (
        "the residuals were saved for another model or compression: saved are "
        f"{_some([layer for layer in saved if layer not in here])}, here are "
        f"{_some([layer for layer in here if layer not in saved])}"
    )


def _some(layers: list[tuple[str, int]]) -> str:
    shown = ", ".join(f"'{name}' ({numel})" for name, numel in layers[:3])
    return (shown or "fewer") + (", ..." if len(layers) > 3 else "")
