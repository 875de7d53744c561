"""Whether the saved state of an exchange is this rank's, whatever framework has saved it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvd_sparse.buckets import Layer
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.settled import Settled
from hvd_sparse.world import World


def mismatch_of(
    saved: Mapping[str, Any], *, version: int, world: World | None, layers: Mapping[str, int]
) -> str | None:
    """Why a saved state does not fit here; None if it does.

    Args:
        saved: With "version", "rank", "size", "layers" and, once it has settled, "tuning".
        version: Of the format that is read here.
        world: The ranks of this rank's exchange; None where it exchanges nothing.
        layers: Elements of each layer that can travel sparse, by name.
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
            Settled.from_json(saved["tuning"]).check(here, size=world.size)
    except InvalidArgumentError as error:
        return f"the saved tuning does not fit: {error}"
    return None


def misplacement_of(saved: Mapping[str, Any], *, version: int, rank: int, size: int) -> str | None:
    """Why a saved state is not that of one of so many ranks; None if it is."""
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
