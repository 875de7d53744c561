"""Masks: which entries of each gradient are exchanged, where the others are never trained.

The masked entries form a smaller gradient, which everything behind a slot takes for a whole one:
buckets, residuals, velocities and messages. No position is sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvd_sparse.errors import GradientInFlightError, InvalidArgumentError, UnsupportedError
from hvd_sparse.log import logger
from hvd_sparse.pytorch.forward import ForwardSteps
from hvd_sparse.pytorch.gradient_exchange import GradientExchange, Phase
from hvd_sparse.pytorch.local_steps import LocalSteps
from hvd_sparse.pytorch.shards import shard_of
from hvd_sparse.ranks.agreement import agree
from hvd_sparse.ranks.world import in_elastic_job

Masks = Mapping[str, torch.Tensor]


def replace(exchange: GradientExchange | None, masks: Masks | None) -> None:
    """Replaces the masks of an exchange; see `TorchExchange.set_masks`. Collective.

    Args:
        exchange: The exchange; None if this rank has no peers.
        masks: The new masks by parameter.
    """
    if exchange is None:
        if in_elastic_job():
            raise UnsupportedError("set_masks() needs 2 ranks at least in an elastic job, got 1")
        return
    wanted, problem, described = {} if masks is None else masks, None, {}
    try:
        _check_kind(exchange)
        _check_masks(exchange, wanted)
        exchange.settle()
        if exchange.phase is not Phase.IDLE:
            raise GradientInFlightError(
                "set_masks() was called between the exchange of gradients and optimizer.step(): "
                "call it after the step"
            )
        described = _described(exchange, wanted)
    except Exception as error:
        problem = error
    ranks = exchange.link.host.ranks
    agree(exchange.world, ranks, problem=problem, parameters=(), options=described, serial=0)
    if not _equal(of(exchange), wanted):
        _restrict(exchange, wanted)


def of(exchange: GradientExchange) -> dict[str, torch.Tensor]:
    """Returns the masks of parameters that have one: bool, of their shape, on the CPU."""
    return {
        slot.name: slot.spread(torch.ones_like(slot.support, dtype=torch.bool))
        .view(slot.weights.shape)
        .cpu()
        for slot in exchange.slots
        if slot.support is not None
    }


def mismatch_of(exchange: GradientExchange, saved: Masks) -> str | None:
    """Returns why saved masks do not fit here; None if they do."""
    try:
        if saved:
            _check_kind(exchange)
        _check_masks(exchange, saved, device=torch.device("cpu"))
    except (InvalidArgumentError, UnsupportedError) as error:
        return f"the saved masks do not fit: {error}"
    return None


def restore(exchange: GradientExchange, saved: Masks) -> None:
    """Makes saved masks, which fit here, those of an exchange, on all ranks alike."""
    present = of(exchange)
    if _equal(present, saved):
        return
    if present and exchange.world.rank == 0:
        logger.warning(
            "the masks of the state that is loaded replace those that were set, which differ: call "
            "set_masks() after loading to change them"
        )
    _restrict(exchange, saved)


def adopt(exchange: GradientExchange, own: Masks, source: int) -> None:
    """Makes the masks of one rank those of all ranks' exchanges. Collective.

    Args:
        exchange: The exchange.
        own: The masks that this rank has.
        source: The rank.
    """
    given = own if exchange.world.rank == source else {}
    found = exchange.world.allgather_object(as_arrays(given), dict[str, np.ndarray])[source]
    restore(exchange, as_masks(found))


def as_arrays(masks: Masks) -> dict[str, NDArray[Any]]:
    """Returns masks on the CPU in the form in which ranks send them."""
    return {name: mask.numpy() for name, mask in masks.items()}


def as_masks(arrays: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    """Returns masks that were sent."""
    return {name: torch.from_numpy(one) for name, one in arrays.items()}


def _equal(ours: Masks, theirs: Masks) -> bool:
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], mask.cpu()) for name, mask in theirs.items()
    )


def _restrict(exchange: GradientExchange, masks: Masks) -> None:
    supports = {
        name: mask.to(exchange.parameters[name].device).flatten().nonzero().flatten()
        for name, mask in masks.items()
    }
    with torch.no_grad(), exchange.ending():
        exchange.restrict(supports)


def _check_kind(exchange: GradientExchange) -> None:
    """Raises UnsupportedError if an exchange is of a kind that cannot have masks."""
    kind = ""
    if exchange.tuner is not None:
        kind = "an adaptive compression, which plans for whole layers: pass adaptive=False"
    elif isinstance(exchange, LocalSteps):
        kind = "local_steps: weights outside of a mask would differ between ranks until they meet"
    elif isinstance(exchange, ForwardSteps):
        kind = "wait_in_forward, whose updates are in flight between steps"
    elif any(shard_of(param) is not param for _, param in exchange.named):
        kind = "a sharded model, of whose parameters a rank has parts"
    if kind:
        raise UnsupportedError(f"set_masks() cannot be used with {kind}")


def _check_masks(
    exchange: GradientExchange, masks: Masks, *, device: torch.device | None = None
) -> None:
    """Raises InvalidArgumentError for what are no masks of the parameters.

    Args:
        exchange: The exchange.
        masks: The masks.
        device: The device where they have to lie; None: that of their parameter.
    """
    if not isinstance(masks, Mapping):
        raise InvalidArgumentError(
            f"masks must be a dict of tensors by parameter, or None, got {type(masks).__name__}"
        )
    for name, mask in masks.items():
        param = exchange.parameters.get(name)
        if param is None:
            known = ", ".join(map(repr, list(exchange.parameters)[:3]))
            raise InvalidArgumentError(
                f"masks must name parameters that are exchanged ({known}, ...), got {name!r}"
            )
        place = param.device if device is None else device
        is_tensor = isinstance(mask, torch.Tensor)
        for what, wanted, given in (
            ("a tensor", True, is_tensor or type(mask).__name__),
            ("of type torch.bool", torch.bool, is_tensor and mask.dtype),
            (f"of shape {tuple(param.shape)}", param.shape, is_tensor and mask.shape),
            (f"on device '{place}'", place, is_tensor and mask.device),
        ):
            if given != wanted:
                shown = tuple(given) if isinstance(given, torch.Size) else given
                raise InvalidArgumentError(f"the mask of '{name}' must be {what}, got {shown}")


def _described(exchange: GradientExchange, masks: Masks) -> dict[str, str]:
    """Returns the mask of each parameter in words that are equal for equal masks alone."""
    described = {}
    for slot in exchange.slots:
        text = "None"
        if slot.name in masks:
            mask = masks[slot.name].cpu().numpy()
            digest = hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()
            text = f"{int(mask.sum())} of {mask.size} entries (SHA-256 {digest[:16]})"
        described[f"the mask of '{slot.name}'"] = text
    return described
