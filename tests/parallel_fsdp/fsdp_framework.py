"""FSDP2 for the laws of tests/framework_laws: fully_shard, attach and its functions."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from hvd_sparse.compression import Compression
from hvd_sparse.fsdp import attach
from hvd_sparse.pytorch.shards import shard_of
from tests.frameworks import SHAPES, Arrays, Shapes
from tests.gpus import DEVICE
from tests.parallel_ddp.ddp_framework import OPS, Ddp, Toy
from tests.parallel_ddp.groups import Group
from tests.torch_model import TorchModel, array_of


@functools.cache
def mesh_of(replicas: int, shards: int) -> DeviceMesh:
    """Returns a mesh of all ranks."""
    return init_device_mesh(DEVICE.type, (replicas, shards), mesh_dim_names=("replicate", "shard"))


@functools.cache
def mesh_of_some(group: Group) -> DeviceMesh:
    """Returns a mesh of one shard whose replicas are the ranks of a group."""
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    return DeviceMesh.from_group(
        [group.group, alone],
        DEVICE.type,
        mesh=torch.tensor(group.ranks).view(-1, 1),
        mesh_dim_names=("replicate", "shard"),
    )


class App(Stateful):
    """A model and its optimizer for torch.distributed.checkpoint, as its tutorial has it."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._both = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(*self._both)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        set_state_dict(
            *self._both,
            model_state_dict=state_dict["model"],
            optim_state_dict=state_dict["optimizer"],
        )


class Model(TorchModel):
    """A sharded module with its attached optimizer."""

    def __init__(
        self,
        compression: Compression | None,
        shapes: Shapes,
        *,
        mesh: DeviceMesh,
        dtype: str = "float32",
        op: str = "Sum",
        predivide: float = 1.0,
        passes: int = 1,
        loss_scale: float | None = None,
        rate: float = 1.0,
        optimizer: str = "SGD",
    ) -> None:
        self._dtype = getattr(torch, dtype)
        self._shards = shards = mesh.size(1)
        self._shard = mesh.get_local_rank(1)
        toy = Toy({n: (shards * one[0], *one[1:]) for n, one in shapes.items()}, self._dtype)
        toy.to(DEVICE)
        fully_shard(toy, mesh=mesh)
        super().__init__(compression, toy, optimizer=optimizer, rate=rate, loss_scale=loss_scale)
        self._passes = passes
        if compression is not None:
            attach(
                toy,
                self._optimizer,
                compression,
                op=OPS[op],
                gradient_predivide_factor=predivide,
                grad_scaler=self._scaler,
            )

    def _backward(self, gradients: Arrays) -> None:
        # FSDP2 averages over the shards of a replica, each of which gives a gradient for its own.
        given = {}
        for name, one in gradients.items():
            parts = [torch.zeros(one.shape, dtype=self._dtype, device=DEVICE)] * self._shards
            parts[self._shard] = self._shards * torch.from_numpy(one).to(DEVICE, self._dtype)
            given[name] = torch.cat(parts)
        for left in reversed(range(self._passes)):
            self._module.set_requires_all_reduce(not left)
            loss = self._module(given)
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def _scaled_step(self, scaler: torch.amp.GradScaler) -> None:
        scaler.unscale_(self._optimizer)
        scaler.step(self._optimizer)

    def _results(self) -> Arrays:
        found = {name: one.grad for name, one in self._module.named_parameters()}
        return {name: array_of(one.to_local()) for name, one in found.items() if one is not None}

    def weights(self) -> Arrays:
        return {name: array_of(one.to_local()) for name, one in self._module.named_parameters()}

    def moments(self) -> list[Any]:
        states = self._optimizer.state_dict()["state"].values()
        return [
            array_of(shard_of(one)) for state in states for one in state.values() if one is not None
        ]

    def save(self, folder: str | Path, **extra: Any) -> None:
        exchange = self._optimizer.exchange
        is_local = self.compression is not None and self.compression.is_local
        with exchange.common_weights() if is_local else nullcontext():
            dcp.save({**self._state(), "extra": extra}, checkpoint_id=folder)

    def load(self, folder: str | Path, *, residuals: str = "own") -> dict[str, Any] | None:
        if not Path(folder).exists():
            return None
        own = self._state()
        if residuals == "reset":
            del own["residuals"]
        elif residuals == "spread":
            own["residuals"] = own["residuals"].spread_from(folder)
        names = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
        extra = {one.removeprefix("extra."): 0 for one in names if one.startswith("extra.")}
        dcp.load({**own, "extra": extra}, checkpoint_id=folder)
        return extra

    def _state(self) -> dict[str, Any]:
        return {"app": App(self._module, self._optimizer), "residuals": self._optimizer.exchange}


class Fsdp(Ddp):
    """FSDP2 on `gpus.DEVICE`. To the laws, parameters are this rank's shards of them.

    Args:
        shards: Number of shards of each replica.
    """

    loads_whole = False  # torch.distributed.checkpoint loads a model before our state
    scalar = (1,)  # fully_shard takes no parameter without dimensions

    def __init__(self, shards: int = 1) -> None:
        super().__init__()
        self.mesh = mesh_of(self.size // shards, shards)
        self.rank, self.size = self.mesh.get_local_rank(0), self.mesh.size(0)
        self.everyone = Group(
            tuple(self.mesh.mesh[:, self.mesh.get_local_rank(1)].tolist()), self.mesh.get_group(0)
        )

    def path_of_rank_0(self, path: Path) -> Path:
        paths = [path]
        dist.broadcast_object_list(paths)
        return paths[0]

    def model(
        self,
        compression: Compression | None,
        shapes: Shapes = SHAPES,
        *,
        ranks: Group | None = None,
        **options: Any,
    ) -> Model:
        mesh = self.mesh if ranks is None else mesh_of_some(ranks)
        return Model(compression, shapes, mesh=mesh, **options)
