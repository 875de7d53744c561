"""Checks which part of an exchange's saved state fits here, for every framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvd_sparse.compression import Compression
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.log import logger
from hvd_sparse.ranks.world import World
from hvd_sparse.tuning.settled_state import SettledState

_UNIT = "residuals of"  # the name of a condition: the unit of the residuals
_GRADIENTS, _DIFFERENCES = "gradients", "differences of weights"


def conditions_of(
    compression: Compression, *, local_size: int | None, device: str
) -> dict[str, str]:
    """Returns, by name, the conditions under which plan and thresholds are about to be found.

    Args:
        compression: The user's compression.
        local_size: Ranks on each node; None if nodes differ.
        device: Device of this rank's gradients, as the core names it.
    """
    return {
        "compression": repr(compression),
        "ranks on a node": str(local_size),
        "device": device.split(":")[0],
        _UNIT: _DIFFERENCES if compression.is_local else _GRADIENTS,
    }


def taken_up(
    saved: dict[str, Any], conditions: Mapping[str, str], *, is_rank0: bool
) -> dict[str, Any]:
    """Returns the saved state, without plan and thresholds if they are of other conditions.

    Args:
        saved: A saved state that fits here; has "conditions".
        conditions: The present conditions, from `conditions_of`.
        is_rank0: True if this rank tells the user.
    """
    theirs = {**saved["conditions"], _UNIT: _unit_of(saved["conditions"])}
    changed = [name for name, value in conditions.items() if theirs.get(name) != value]
    if not changed:
        return saved
    if is_rank0:
        shown = "; ".join(f"{n} was {theirs.get(n)}, is {conditions[n]}" for n in changed)
        logger.info("plan and thresholds are found anew, not taken from what was saved: %s", shown)
    return {**saved, "tuning": None, "states": {}}


def mismatch_of(
    saved: Mapping[str, Any], *, version: int, world: World | None, layers: Mapping[str, int]
) -> str | None:
    """Returns why a saved state does not fit here; None if it does.

    Args:
        saved: A state with "version", "rank", "size", "layers" and, once it has settled, "tuning".
        version: Version of the format that is read here.
        world: The ranks of this rank's exchange; None if it exchanges nothing.
        layers: Elements of each layer that can be sent sparse, by name.
    """
    if world is None:
        return _of_another_format(saved, version) or (
            f"the residuals were saved by rank {saved['rank']} of {saved['size']}, and this "
            "process exchanges no gradients"
        )
    misplacement = misplacement_of(saved, version=version, rank=world.rank, size=world.size)
    if misplacement is not None:
        return misplacement
    theirs = saved["layers"]
    if theirs != layers:
        return (
            "the residuals were saved for another model or compression: saved are "
            f"{_some(theirs, layers)}, here are {_some(layers, theirs)}"
        )
    try:
        if saved.get("tuning") is not None:
            here = [Layer(name, numel) for name, numel in layers.items()]
            SettledState.from_json(saved["tuning"]).check(here, size=world.size)
    except InvalidArgumentError as error:
        return f"the saved tuning does not fit: {error}"
    return None


def mismatch_of_unit(saved: Mapping[str, Any], conditions: Mapping[str, str] | None) -> str | None:
    """Returns why saved residuals cannot go on as those of this exchange; None if they can.

    A difference of weights is a gradient times a learning rate only with plain SGD, so residuals of
    one unit are never taken for those of the other. Residuals of zeros fit anywhere.

    Args:
        saved: A state with "conditions" and "residuals", which are arrays or tensors.
        conditions: The present conditions, from `conditions_of`; None if there is no exchange.
    """
    if conditions is None or not any(bool(part.any()) for part in saved["residuals"].values()):
        return None
    theirs, ours = _unit_of(saved["conditions"]), _unit_of(conditions)
    if theirs == ours:
        return None
    local = "with local_steps" if theirs == _DIFFERENCES else "without local_steps"
    return (
        f"the residuals were saved {local} and hold {theirs}, and this exchange takes {ours}, "
        "which have another scale"
    )


def require_unit(saved: Mapping[str, Any], conditions: Mapping[str, str]) -> None:
    """Raises CheckpointMismatchError if `mismatch_of_unit` finds a reason."""
    mismatch = mismatch_of_unit(saved, conditions)
    if mismatch is not None:
        raise CheckpointMismatchError(mismatch)


def _unit_of(conditions: Mapping[str, str]) -> str:
    """Returns the unit of the residuals; older states name only the compression."""
    is_local = "local_steps=" in conditions.get("compression", "")
    return conditions.get(_UNIT, _DIFFERENCES if is_local else _GRADIENTS)


def misplacement_of(saved: Mapping[str, Any], *, version: int, rank: int, size: int) -> str | None:
    """Returns why a saved state is not that of this rank of so many; None if it is."""
    if saved.get("version") != version:
        return _of_another_format(saved, version)
    if saved.get("whole"):
        return "the residuals are the sum of those of all ranks, for others that are about to come"
    if saved["size"] != size:
        return f"the residuals were saved by {saved['size']} ranks and there are {size} now"
    if saved["rank"] != rank:
        return f"the residuals were saved by rank {saved['rank']} and this is rank {rank}"
    return None


def _of_another_format(saved: Mapping[str, Any], version: int) -> str | None:
    if saved.get("version") == version:
        return None
    return (
        f"the residuals were saved in format {saved.get('version')} and this version reads "
        f"format {version}"
    )


def _some(layers: Mapping[str, int], others: Mapping[str, int]) -> str:
    lacking = [(name, numel) for name, numel in layers.items() if others.get(name) != numel]
    shown = ", ".join(f"'{name}' ({numel})" for name, numel in lacking[:3])
    return (shown or "fewer") + (", ..." if len(lacking) > 3 else "")
