"""The state of a sharded exchange, in the form of torch.distributed.checkpoint (DCP).

What each rank keeps for a parameter, such as its shard's residual, is a part of one DTensor whose
first dimension counts the replicas:

    residuals.layer.weight   float32, [replicas, *shape of the parameter]
                             sharded along the mesh's replicas, and as the parameter is

So DCP can load it on a mesh with another number of shards. All else is a text: what each rank knows
of its own, which fits only the mesh that has saved it, or is the same on all ranks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from hvd_sparse.errors import CheckpointMismatchError
from hvd_sparse.fsdp.groups import Mesh
from hvd_sparse.pytorch import state
from hvd_sparse.pytorch.gradient_exchange import GradientExchange
from hvd_sparse.pytorch.local_steps import LocalSteps
from hvd_sparse.pytorch.shards import like, shard_of
from hvd_sparse.state.checkpoint import Job
from hvd_sparse.state.spreading import share_of

_Tensors = Mapping[str, torch.Tensor]
_Rows = Sequence[dict[str, Any]]  # the texts of all ranks

# Parts of the state that have a tensor for a parameter: of every exchange; and of one whose ranks
# take local steps, whose weights and optimizer's state are their own.
_RESIDUALS, _VELOCITIES = "residuals", "velocities"
_LOCAL_PARTS = ("common", "start", "taken", "averages", "outer")
_WEIGHTS = "weights"
_MOMENT = "moment "  # and its name in the optimizer's state

_RANKS = "ranks"


def save(exchange: GradientExchange, job: Job, mesh: Mesh) -> dict[str, Any]:
    """Returns the state of all ranks, as DTensors and a text. Collective.

    Args:
        exchange: This rank's exchange.
        job: All ranks of the mesh.
        mesh: The mesh.
    """
    own = state.save(exchange)
    parts: dict[str, _Tensors] = {name: own.pop(name) for name in (_RESIDUALS, _VELOCITIES)}
    own["states"] = {unit: one.tolist() for unit, one in own["states"].items()}
    if isinstance(exchange, LocalSteps):
        parts |= {name: own["local"].pop(name) for name in _LOCAL_PARTS}
        parts |= dict(_of_this_rank(exchange))
    own["has"] = {part: list(tensors) for part, tensors in parts.items()}
    texts = job.allgather(json.dumps({"mesh": [mesh.replicas, mesh.shards], **own}))
    present = {part for text in texts for part in json.loads(text)["has"]}
    saved: dict[str, Any] = {
        part: {
            name: _whole(parts.get(part, {}).get(name), param, mesh, mesh.replicas)
            for name, param in exchange.named
        }
        for part in sorted(present)
    }
    return {**saved, _RANKS: json.dumps(texts)}


def read(
    exchange: GradientExchange, job: Job, mesh: Mesh, saved: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what `save` has returned in the form of `state.save`. Collective.

    Raises:
        CheckpointMismatchError: On all ranks: a residual has no place here.
    """
    rows = _rows_of(saved)
    fits = rows[0]["mesh"] == [mesh.replicas, mesh.shards]
    having = [rows[job.rank]] if fits else rows

    def part_of(part: str) -> dict[str, torch.Tensor]:
        names = {name for row in having for name in row["has"].get(part, ())}
        return {name: shard_of(saved[part][name])[0] for name in names}

    parts = {part: part_of(part) for part in saved if part != _RANKS}
    residuals = _with_a_place(exchange, job, parts[_RESIDUALS])
    velocities = {name: one.flatten() for name, one in parts[_VELOCITIES].items()}
    if not fits:
        held = _in_common(exchange, rows) | {"local": rows[0]["local"]}
    else:
        (own,) = having
        states = {unit: np.array(one, np.float32) for unit, one in own["states"].items()}
        tensors = {unit: torch.from_numpy(one) for unit, one in states.items()}
        held = {**_in_common(exchange, rows), **_without_mesh(own), "states": tensors}
    if held["local"] is not None:
        held["local"] = {**held["local"], **{part: parts.get(part, {}) for part in _LOCAL_PARTS}}
    return {**held, _RESIDUALS: residuals, _VELOCITIES: velocities}


@torch.no_grad()
def load_own(exchange: LocalSteps, saved: Mapping[str, Any]) -> None:
    """Loads this rank's weights, and its optimizer's state, from what `save` has returned."""
    states = exchange.optimizer().state
    for part, tensors in saved.items():
        for slot in exchange.slots if part == _WEIGHTS or part.startswith(_MOMENT) else ():
            own = shard_of(tensors[slot.name])[0].to(slot.weights.device, slot.weights.dtype)
            if part == _WEIGHTS:
                slot.weights.copy_(own)
            elif slot.param in states:
                states[slot.param][part.removeprefix(_MOMENT)] = like(own.clone(), slot.param)


def to_be_spread(
    exchange: GradientExchange, mesh: Mesh, folder: str | os.PathLike[str]
) -> dict[str, Any]:
    """Returns what DCP loads of a folder for `spread`: residuals of any number of replicas.

    Raises:
        CheckpointMismatchError: The folder holds no residuals of this model.
    """
    metadata = FileSystemReader(folder).read_metadata().state_dict_metadata
    sizes = {name: getattr(one, "size", ()) for name, one in metadata.items()}
    residuals = {}
    for name, param in exchange.named:
        ending = f".{_RESIDUALS}.{name}"
        replicas = [size[0] for key, size in sizes.items() if key.endswith(ending) and size]
        if not replicas:
            raise CheckpointMismatchError(f"{folder} holds no residual of '{name}'")
        residuals[name] = _whole(None, param, mesh, replicas[0], spread=True)
    return {_RESIDUALS: residuals, _RANKS: ""}


def spread(exchange: GradientExchange, job: Job, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns this rank's share of all residuals, in the form of `state.save`. Collective.

    Args:
        exchange: This rank's exchange.
        job: All ranks of the mesh.
        saved: What `to_be_spread` has returned, loaded.

    Raises:
        CheckpointMismatchError: On all ranks: the state was saved amid an interval of local steps,
            or a residual has no place here.
    """
    rows = _rows_of(saved)
    with job.fail_together(CheckpointMismatchError):
        state.require_met(rows[0]["local"])
    world = exchange.world
    shares = {}
    for name, one in saved[_RESIDUALS].items():
        total = shard_of(one).double().sum(0).flatten().cpu().numpy()
        shares[name] = torch.from_numpy(share_of(total, rank=world.rank, size=world.size))
    residuals = _with_a_place(exchange, job, shares)
    return {**_in_common(exchange, rows), "local": None, _RESIDUALS: residuals, _VELOCITIES: {}}


def _rows_of(saved: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(text) for text in json.loads(saved[_RANKS])]


def _without_mesh(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("mesh", "has")}


def _in_common(exchange: GradientExchange, rows: _Rows) -> dict[str, Any]:
    """Returns what fits any mesh: thresholds and plan are found anew."""
    lrs = {name: rate for row in rows for name, rate in row["lrs"].items()}
    place = {"rank": exchange.world.rank, "size": exchange.world.size}
    anew: dict[str, Any] = {"states": {}, "tuning": None, "pending": True}
    layers = state.layers_of(exchange)
    return {**_without_mesh(rows[0]), **place, **anew, "lrs": lrs, "layers": layers}


def _with_a_place(
    exchange: GradientExchange, job: Job, residuals: _Tensors
) -> dict[str, torch.Tensor]:
    """Returns the residuals of layers that can be sparse here, flat. Collective.

    Raises:
        CheckpointMismatchError: On all ranks: one of another layer is not zero.
    """
    layers = state.layers_of(exchange)
    with job.fail_together(CheckpointMismatchError):
        for name, residual in residuals.items():
            if name not in layers and bool(residual.any()):
                raise CheckpointMismatchError(
                    f"the residual of '{name}' has no place in a shard of {residual.numel()} "
                    "entries, which this compression sends dense: pass Layers(min_numel=...), at "
                    "most that, or leave the residuals out of what is loaded"
                )
    return {name: one.flatten() for name, one in residuals.items() if name in layers}


def _of_this_rank(exchange: LocalSteps) -> Iterator[tuple[str, _Tensors]]:
    """Yields this rank's weights, and the tensors of its optimizer's state, by parameter."""
    yield _WEIGHTS, exchange.own_weights()
    states = exchange.optimizer().state
    moments: dict[str, dict[str, torch.Tensor]] = {}
    for slot in exchange.slots:
        for key, value in states.get(slot.param, {}).items():
            if isinstance(value, torch.Tensor) and shard_of(value).shape == slot.weights.shape:
                moments.setdefault(_MOMENT + key, {})[slot.name] = shard_of(value)
    yield from moments.items()


def _whole(
    part: torch.Tensor | None,
    param: torch.Tensor,
    mesh: Mesh,
    replicas: int,
    *,
    spread: bool = False,
) -> DTensor:
    """Returns the DTensor of a parameter of which this rank has a part.

    Args:
        part: This rank's part, in the shape of its shard or flat; None: zeros.
        param: The parameter.
        mesh: The mesh.
        replicas: Number of replicas in the tensor.
        spread: True if this rank has the parts of all replicas.
    """
    shard = shard_of(param)
    assert isinstance(param, DTensor)
    sharded = param.placements[mesh.shard_dim]
    assert isinstance(sharded, Shard)
    placements: list[Placement] = [Replicate() if spread else Shard(0)] * 2
    placements[mesh.shard_dim] = Shard(1 + sharded.dim)
    if part is None:
        own = torch.zeros((replicas if spread else 1, *shard.shape), device=shard.device)
    else:
        own = part.detach().view(1, *shard.shape).clone()
    whole = torch.empty((replicas, *param.shape), device="meta")
    return DTensor.from_local(
        own, mesh.mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )
