"""An exchange's state as arrays: saved by each rank, loaded by the same rank.

Layers have other names here than in messages: Keras numbers them on where a process makes a model
again, and a resumed run need not have made as many. So the numbers are left out.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_sparse.errors import CheckpointMismatchError
from hvd_sparse.state.saved_exchange import mismatch_of, taken_up
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tuning.settled import Settled

_VERSION = 2
_ARRAYS = ("residuals", "states", "velocities")


def save(exchange: GradientExchange) -> dict[str, Any]:
    """What belongs to this rank's exchange, copied.

    Returns:
        "residuals" and "velocities": by layer, float32, flat. "states": by unit of selection,
        float32, [4]. And what JSON can hold.
    """
    names = exchange.saved_names
    tuning = None if exchange.tuner is None else exchange.tuner.state()
    if tuning is not None:
        tuning = Settled.from_json(tuning).renamed(names).to_json()
    return {
        "version": _VERSION,
        "rank": exchange.world.rank,
        "size": exchange.world.size,
        "conditions": exchange.conditions,
        "layers": layers_of(exchange),
        "residuals": {names[n]: part.numpy() for n, part in exchange.residuals().items()},
        "states": {names[n]: part.numpy() for n, part in exchange.memories().items()},
        "velocities": {names[n]: part.numpy() for n, part in exchange.velocities().items()},
        "step": exchange.steps,
        "rate": exchange.rate,
        "tuning": tuning,
    }


def check(exchange: GradientExchange | None, saved: dict[str, Any] | None) -> None:
    """Refuses saved residuals that belong somewhere else, before anything has changed.

    Args:
        exchange: Of this rank; None where it exchanges nothing.
        saved: What `save` returned; None, of a rank that exchanged nothing, fits anywhere.

    Raises:
        CheckpointMismatchError: Names what was saved and what is here, and says how to go on.
    """
    if saved is None:
        return
    world = None if exchange is None else exchange.world
    layers = {} if exchange is None else layers_of(exchange)
    mismatch = mismatch_of(saved, version=_VERSION, world=world, layers=layers)
    if mismatch is None and exchange is not None:
        mismatch = _velocity_mismatch(exchange, saved)
    if mismatch is None:
        return
    advice = 'residuals="reset" goes on without them (what was not sent yet is lost)'
    if exchange is None:
        advice = f"call prepare() before, so that there is an exchange to take them up; or {advice}"
    raise CheckpointMismatchError(f"{mismatch}. To go on: {advice}")


def load(exchange: GradientExchange, saved: dict[str, Any] | None) -> None:
    """Takes up, between two steps, what `check` has found to fit; None empties the residuals.

    Of another compression, or where the ranks lie otherwise, without plan and thresholds.
    """
    if saved is None:
        exchange.load({}, {}, {}, step=exchange.steps, rate=exchange.rate)
        return
    saved = taken_up(saved, exchange.conditions, leads=exchange.world.rank == 0)
    own = {theirs: ours for ours, theirs in exchange.saved_names.items()}
    if exchange.tuner is not None:
        settled = saved["tuning"]
        if settled is not None:
            settled = Settled.from_json(settled).renamed(own).to_json()
        exchange.go_on_as(settled, step=saved["step"])
    arrays = [{own[name]: part for name, part in saved[kind].items()} for kind in _ARRAYS]
    exchange.load(*arrays, step=saved["step"], rate=saved["rate"])


def layers_of(exchange: GradientExchange) -> dict[str, int]:
    """Elements of each layer that can travel sparse, by the name under which it is saved."""
    return {exchange.saved_names[layer.name]: layer.numel for layer in exchange.layers}


def _velocity_mismatch(exchange: GradientExchange, saved: dict[str, Any]) -> str | None:
    for name, velocity in saved["velocities"].items():
        if velocity.size != exchange.saved_numels.get(name):
            return f"the saved velocity of '{name}' is damaged, or of another model"
    return None


def write(path: Path, saved: dict[str, Any] | None, others: dict[str, NDArray[Any]]) -> None:
    """Writes a rank's file.

    Args:
        path: Its name, which ends with .npz.
        saved: From `save`; None where the rank exchanges nothing.
        others: More arrays, by names without a slash.
    """
    arrays: dict[str, Any] = dict(others)
    head = None
    if saved is not None:
        head = {key: value for key, value in saved.items() if key not in _ARRAYS}
        for kind in _ARRAYS:
            arrays |= {f"{kind}/{name}": part for name, part in saved[kind].items()}
    np.savez(path, head=np.array(json.dumps(head)), **arrays)


def read(path: Path) -> tuple[dict[str, Any] | None, dict[str, NDArray[Any]]]:
    """What `write` was given.

    Raises:
        CheckpointMismatchError: The file is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        saved = json.loads(str(arrays.pop("head")))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointMismatchError(f"{path} is damaged: {error}") from None
    if saved is not None:
        for kind in _ARRAYS:
            found = [name for name in arrays if name.startswith(f"{kind}/")]
            saved[kind] = {name.removeprefix(f"{kind}/"): arrays.pop(name) for name in found}
    return saved, arrays
