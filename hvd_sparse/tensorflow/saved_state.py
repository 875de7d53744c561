"""An exchange's state as arrays: saved by each rank, loaded by the same rank.

The names of layers differ from those in messages. Keras keeps counting layers when a process makes
a model again, and a resumed run may have made fewer models, so the numbers are left out.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_sparse.errors import CheckpointMismatchError
from hvd_sparse.state.saved_exchange import mismatch_of, mismatch_of_unit, taken_up
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange
from hvd_sparse.tuning.settled_state import SettledState

_VERSION = 2
_ARRAYS = ("residuals", "states", "velocities")


def save(exchange: GradientExchange) -> dict[str, Any]:
    """Returns a copy of the state of this rank's exchange.

    Returns:
        "residuals" and "velocities" by layer, float32, flat; "states" by unit of selection,
        float32, [4]; further entries of JSON's types.
    """
    names = exchange.saved_names
    tuning = None if exchange.tuner is None else exchange.tuner.state()
    if tuning is not None:
        tuning = SettledState.from_json(tuning).renamed(names).to_json()
    return {
        "version": _VERSION,
        "rank": exchange.world.rank,
        "size": exchange.world.size,
        "conditions": exchange.conditions,
        "layers": layers_of(exchange),
        "residuals": {names[n]: part.numpy() for n, part in exchange.residuals().items()},
        "states": {names[n]: part.numpy() for n, part in exchange.sparsifier_states().items()},
        "velocities": {names[n]: part.numpy() for n, part in exchange.velocities().items()},
        "pending": exchange.pending,
        "step": exchange.steps,
        "rate": exchange.rate,
        "tuning": tuning,
    }


def check(exchange: GradientExchange | None, saved: dict[str, Any] | None) -> None:
    """Refuses saved residuals that do not fit, before anything has changed.

    Args:
        exchange: This rank's exchange; None if it exchanges nothing.
        saved: The state that `save` returned; None, from a rank that exchanged nothing, always
            fits.

    Raises:
        CheckpointMismatchError: The state does not fit. The message names what was saved and what
            is here, and says how to go on.
    """
    if saved is None:
        return
    world = None if exchange is None else exchange.world
    layers = {} if exchange is None else layers_of(exchange)
    mismatch = mismatch_of(saved, version=_VERSION, world=world, layers=layers)
    if mismatch is None and exchange is not None:
        mismatch = _velocity_mismatch(exchange, saved)
        mismatch = mismatch or mismatch_of_unit(saved, exchange.conditions)
    if mismatch is None:
        return
    advice = 'residuals="reset" goes on without them (what was not sent yet is lost)'
    if exchange is None:
        advice = f"call prepare() before, so that there is an exchange to take them up; or {advice}"
    raise CheckpointMismatchError(f"{mismatch}. To go on: {advice}")


def load(exchange: GradientExchange, saved: dict[str, Any] | None) -> None:
    """Loads, between two steps, state that `check` has accepted; None zeroes the residuals.

    Plan and thresholds are left out if the compression, the ranks per node or the device differ.
    """
    if saved is None:
        exchange.load({}, {}, {}, step=exchange.steps, rate=exchange.rate)
        return
    saved = taken_up(saved, exchange.conditions, is_rank0=exchange.world.rank == 0)
    own = {theirs: ours for ours, theirs in exchange.saved_names.items()}
    if exchange.tuner is not None:
        settled = saved["tuning"]
        if settled is not None:
            settled = SettledState.from_json(settled).renamed(own).to_json()
        exchange.restore_tuning(settled, step=saved["step"])
    arrays = [{own[name]: part for name, part in saved[kind].items()} for kind in _ARRAYS]
    pending = saved.get("pending", True)  # older files do not say
    exchange.load(*arrays, step=saved["step"], rate=saved["rate"], pending=pending)


def layers_of(exchange: GradientExchange) -> dict[str, int]:
    """Returns the elements of each layer that can be sent sparse, by saved name."""
    return {exchange.saved_names[layer.name]: layer.numel for layer in exchange.layers}


def _velocity_mismatch(exchange: GradientExchange, saved: dict[str, Any]) -> str | None:
    for name, velocity in saved["velocities"].items():
        if velocity.size != exchange.saved_numels.get(name):
            return f"the saved velocity of '{name}' is damaged, or of another model"
    return None


def write(path: Path, saved: dict[str, Any] | None, others: dict[str, NDArray[Any]]) -> None:
    """Writes a rank's file.

    Args:
        path: The file's path, which ends with .npz.
        saved: The state from `save`; None if the rank exchanges nothing.
        others: Further arrays, by names without a slash.
    """
    arrays: dict[str, Any] = dict(others)
    head = None
    if saved is not None:
        head = {key: value for key, value in saved.items() if key not in _ARRAYS}
        for kind in _ARRAYS:
            arrays |= {f"{kind}/{name}": part for name, part in saved[kind].items()}
    np.savez(path, head=np.array(json.dumps(head)), **arrays)


def read(path: Path) -> tuple[dict[str, Any] | None, dict[str, NDArray[Any]]]:
    """Reads a rank's file; returns `saved` and `others` as given to `write`.

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
