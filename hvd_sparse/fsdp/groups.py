"""The groups of parameters that fully_shard has made, and their mesh.

FSDP2 has no public way to leave the all-reduce between replicas to somebody else: on a mesh of two
dimensions it reduces by itself, and then calls the hook of set_all_reduce_hook. A group whose mesh
has shards alone reduces nothing between replicas, and that is what `take_over` makes of it. What
this file reads of PyTorch's private classes is the same from PyTorch 2.7 to 2.15.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.errors import HvdSparseError, InvalidArgumentError, UnsupportedError
from hvd_sparse.pytorch.parameters import NamedParameters
from hvd_sparse.pytorch.renewal import Renewal

_MESH = 'mesh=init_device_mesh(device, (nodes, gpus), mesh_dim_names=("replicate", "shard"))'


@dataclass(frozen=True)
class Mesh:
    """The mesh on which a model is sharded and replicated.

    Attributes:
        mesh: PyTorch's mesh of two dimensions.
        replicate_dim: The dimension along which ranks hold the same shard.
        shard_dim: The dimension along which ranks hold the shards of one replica.
    """

    mesh: DeviceMesh
    replicate_dim: int
    shard_dim: int

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return int(self.mesh.size(self.replicate_dim))

    @property
    def shards(self) -> int:
        """Number of shards of each replica."""
        return int(self.mesh.size(self.shard_dim))

    @property
    def ranks(self) -> list[int]:
        """Numbers of all its ranks in the job."""
        ranks: list[int] = self.mesh.mesh.flatten().tolist()
        return ranks


class Group:
    """The parameters that one call of fully_shard gathers, reduces and reshards together.

    Args:
        group: FSDP2's own group.

    Attributes:
        mesh: Its mesh.
        params: Its parameters that require gradients, in the order in which FSDP2 hands out their
            gradients.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.params = [param for param in map(_param_of, group.fsdp_params) if param.requires_grad]

    @property
    def mesh(self) -> Mesh | None:
        """Its mesh; None if that has no replicas, or no shards."""
        info = self._group.mesh_info
        if getattr(info, "replicate_mesh_dim", None) is None or info.shard_mesh_dim is None:
            return None
        return Mesh(info.mesh, info.replicate_mesh_dim, info.shard_mesh_dim)

    @property
    def exchanges_now(self) -> bool:
        """True if gradients are due between replicas in this backward pass.

        They are not within an accumulation, after set_requires_all_reduce(False).
        """
        return bool(self._group.all_reduce_grads)

    def check(self) -> None:
        """Raises UnsupportedError for what changes the reduction between replicas."""
        if not isinstance(self._group._all_reduce_hook, (_Taken, type(None))):
            raise UnsupportedError(
                "a module has an all-reduce hook already, which would get the gradients of one "
                "replica: do not call set_all_reduce_hook"
            )
        copies = getattr(self._group.offload_policy, "pin_memory", False)
        # Before, FSDP2 hands out gradients whose copy from a GPU is still in flight.
        if copies and self._group.device.type != "cpu" and torch.__version__ < "2.13":
            raise UnsupportedError(
                f"CPUOffloadPolicy(pin_memory=True) takes PyTorch 2.13, got {torch.__version__}"
            )
        factor = getattr(self._group, "gradient_divide_factor", None)
        if factor is not None:
            raise UnsupportedError(
                f"set_gradient_divide_factor({factor}) divides sums over all ranks of the mesh, "
                "and an exchange averages over replicas: scale the loss instead"
            )

    def reshard(self) -> None:
        """Drops whole parameters, which a forward pass without backward may have left."""
        self._group.reshard()

    def take_over(self, renewal: Renewal) -> None:
        """Leaves what lies between replicas to the exchange of a renewal."""
        self._group._all_reduce_hook = _Taken(renewal)
        info = self._group.mesh_info
        if not isinstance(info, HSDPMeshInfo):  # a former exchange had it
            return
        own = FSDPMeshInfo(info.mesh, shard_mesh_dim=info.shard_mesh_dim)
        own.replicate_mesh_dim = info.replicate_mesh_dim
        separate = getattr(info, "reduce_scatter_process_group", None)
        if separate is not None:
            own.reduce_scatter_process_group = separate
        self._group.mesh_info = own


class _Taken:
    """The all-reduce hook of a group: checks that an exchange reduces its gradients.

    Args:
        renewal: Holds the exchange, for as long as its optimizer lives.
    """

    def __init__(self, renewal: Renewal) -> None:
        self._renewal = weakref.ref(renewal)

    def __call__(self, _: torch.Tensor) -> None:
        renewal = self._renewal()
        if renewal is None or renewal.exchange is None:
            raise HvdSparseError(
                "the optimizer that was attached to this model no longer exists, and nothing "
                "averages gradients over the replicas: attach another one"
            )


def groups_of(model: torch.nn.Module) -> list[Group]:
    """Returns the groups of all modules in a model.

    Raises:
        InvalidArgumentError: It has none.
        UnsupportedError: It is sharded or replicated by something else.
    """
    own: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(module, FullyShardedDataParallel):
            raise UnsupportedError(
                "model must be sharded by torch.distributed.fsdp.fully_shard, got a "
                "FullyShardedDataParallel, which has no place for an exchange between replicas"
            )
        if isinstance(module, DistributedDataParallel):
            raise InvalidArgumentError(
                "model must be sharded by torch.distributed.fsdp.fully_shard, got a "
                "DistributedDataParallel: use hvd_sparse.ddp.attach"
            )
        if isinstance(module, FSDPModule):
            own |= {id(group): group for group in _groups_in(module)}
    if not own:
        raise InvalidArgumentError(
            "model must be sharded by torch.distributed.fsdp.fully_shard, got "
            f"{type(model).__module__}.{type(model).__qualname__}, no module of which is"
        )
    return [Group(group) for group in own.values()]


def common_mesh(groups: list[Group]) -> Mesh:
    """Returns the mesh of all groups.

    Raises:
        InvalidArgumentError: A group has another one, or one without replicas.
    """
    meshes = [group.mesh for group in groups]
    first = meshes[0]
    for mesh in meshes:
        if mesh is None:
            raise InvalidArgumentError(
                "fully_shard must be given a mesh with replicas, between which gradients are "
                f"exchanged, and shards: {_MESH}"
            )
        if mesh != first:
            raise InvalidArgumentError(
                f"all calls of fully_shard must be given one mesh, got {mesh.mesh} and "
                f"{first.mesh if first else None}"
            )
    assert first is not None
    return first


def groups_to_take(groups: list[Group], optimizer: torch.optim.Optimizer) -> list[Group]:
    """Returns the groups all of whose parameters an optimizer updates; FSDP2 keeps the others.

    Raises:
        InvalidArgumentError: A parameter of the optimizer belongs to no group; or the optimizer
            updates some parameters of a group, and others not.
    """
    updated = {id(one) for group in optimizer.param_groups for one in group["params"]}
    sharded = {id(one) for group in groups for one in group.params}
    name = type(optimizer).__name__
    for index, group in enumerate(optimizer.param_groups):
        for position, param in enumerate(group["params"]):
            if param.requires_grad and id(param) not in sharded:
                raise InvalidArgumentError(
                    f"parameter {position} of group {index} of {name} is not sharded in this "
                    "model: make the optimizer after fully_shard, and pass the module that "
                    "contains all of its parameters"
                )
    taken = []
    for own in groups:
        count = sum(id(one) in updated for one in own.params)
        if 0 < count < len(own.params):
            raise InvalidArgumentError(
                f"{name} updates {count} of {len(own.params)} parameters that one fully_shard "
                "reduces together: give it all of them, freeze the others, or shard their modules "
                "by a call of their own"
            )
        if count:
            taken.append(own)
    return taken


def named_in(model: torch.nn.Module, groups: list[Group]) -> NamedParameters:
    """Returns the parameters of some groups by their names in the model, in its order.

    Raises:
        UnsupportedError: A parameter is sharded by something else, too.
    """
    own = {id(param) for group in groups for param in group.params}
    named = [(name, param) for name, param in model.named_parameters() if id(param) in own]
    for name, param in named:
        if len(getattr(param, "placements", ())) != 2:
            raise UnsupportedError(
                f"'{name}' is sharded by tensor parallelism, too, and an exchange takes parameters "
                "on a mesh of replicas and shards alone"
            )
    return named


def _groups_in(module: FSDPModule) -> Iterator[Any]:
    state = module._get_fsdp_state()
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        yield from several
    elif state._fsdp_param_group is not None:
        yield state._fsdp_param_group


def _param_of(one: Any) -> torch.nn.Parameter:
    """Returns the parameter as its module has it: to_empty() may have replaced that."""
    info = one._module_info
    param: torch.nn.Parameter = getattr(info.module, info.param_name)
    return param
