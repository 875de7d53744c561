"""The settings of an exchange, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hvd_sparse.compression import Compression, as_compression
from hvd_sparse.compression.checks import checked_choice, checked_count
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.exchange import local_share
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.pytorch.devices import check_device, common_device
from hvd_sparse.pytorch.hooks import check_hooks
from hvd_sparse.pytorch.host import TorchHost
from hvd_sparse.pytorch.parameters import NamedParameters
from hvd_sparse.pytorch.places import OnDevice
from hvd_sparse.pytorch.shards import shard_of
from hvd_sparse.pytorch.slots import DTYPES

_REFUSED_OPTIMIZERS = {
    torch.optim.LBFGS: "it evaluates its closure many times a step",
    torch.optim.SparseAdam: "it needs sparse gradients, and a sparse exchange returns dense ones",
}

# Keys of a parameter group, and the option of a compression that does the same.
_DONE_BY = {
    "weight_decay": "weight_decay",
    "momentum": "momentum",
    "betas": "momentum",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of an exchange, under Horovod's names, and the parameters that it exchanges."""

    compression: Compression
    backward_passes_per_step: int
    reduction: Reduction
    sparse_as_dense: bool
    grad_scaler: Any
    waits_in_forward: bool
    named: NamedParameters = ()

    @classmethod
    def checked(
        cls,
        optimizer: torch.optim.Optimizer,
        compression: object,
        *,
        host: TorchHost,
        named: NamedParameters = (),
        backward_passes_per_step: int = 1,
        sparse_as_dense: bool = False,
        grad_scaler: Any = None,
        wait_in_forward: bool = False,
        **reduction: Any,
    ) -> Settings:
        """Returns the settings; refuses what a sparse exchange cannot do.

        Raises:
            InvalidArgumentError: An argument lies outside its limits.
            UnsupportedError: A sparse exchange cannot honour an argument.
        """
        for refused, why in _REFUSED_OPTIMIZERS.items():
            if isinstance(optimizer, refused):
                raise UnsupportedError(
                    f"torch.optim.{refused.__name__} cannot be used with a sparse compression: "
                    f"{why}"
                )
        check_hooks(optimizer)
        reduced = host.reduction(**reduction)
        chosen = as_compression(compression)
        check_not_twice(optimizer, chosen)
        checked_choice("wait_in_forward", wait_in_forward, (True, False))
        _check_scaler(grad_scaler)
        if wait_in_forward:
            _check_waiting(chosen, grad_scaler)
        return cls(
            compression=chosen,
            backward_passes_per_step=checked_passes(backward_passes_per_step),
            reduction=reduced,
            sparse_as_dense=bool(sparse_as_dense),
            grad_scaler=grad_scaler,
            waits_in_forward=wait_in_forward,
            named=named,
        )

    def describe(self) -> dict[str, str]:
        """Returns, by name, the settings that must be the same on all ranks."""
        return {
            "compression": repr(self.compression),
            "backward_passes_per_step": str(self.backward_passes_per_step),
            **self.reduction.describe(),
            "sparse_as_dense": str(self.sparse_as_dense),
            "grad_scaler": "None" if self.grad_scaler is None else type(self.grad_scaler).__name__,
            "wait_in_forward": str(self.waits_in_forward),
        }


def _check_scaler(grad_scaler: Any) -> None:
    """Raises InvalidArgumentError unless `grad_scaler` is None or scales losses."""
    if grad_scaler is not None and not callable(getattr(grad_scaler, "get_scale", None)):
        raise InvalidArgumentError(
            f"grad_scaler must have get_scale(), as a GradScaler has, got {grad_scaler!r}"
        )


def _check_waiting(compression: Compression, grad_scaler: Any) -> None:
    """Raises InvalidArgumentError for what steps that do not wait cannot do."""
    for name, given, why in (
        ("grad_scaler", grad_scaler, "a scaler has to see all averages before the step"),
        ("quality_every", compression.feedback.quality_every, "averages are applied by then"),
        ("local_steps", compression.local_steps, "their delay hides a meeting instead"),
    ):
        if given is not None:
            raise InvalidArgumentError(
                f"{name} must be None with wait_in_forward: {why}, got {given!r}"
            )


def check_not_twice(optimizer: torch.optim.Optimizer, compression: Compression) -> None:
    """Raises InvalidArgumentError if the optimizer would repeat what the compression does."""
    for index, group in enumerate(optimizer.param_groups):
        optimizer_name = f"group {index} of {type(optimizer).__name__}"
        local_share.check_not_twice(optimizer_name, group, _DONE_BY, compression)


def checked_passes(passes: int) -> int:
    """Returns `passes`; raises InvalidArgumentError if it is no number of backward passes."""
    if isinstance(passes, int) and passes <= 0:
        raise InvalidArgumentError("backward_passes_per_step must be > 0")
    return checked_count("backward_passes_per_step", passes, low=1, high=2**31 - 1)


def check_parameter(name: str, param: torch.Tensor) -> None:
    """Raises UnsupportedError unless the gradients of `param` can be exchanged."""
    if param.is_complex():
        raise UnsupportedError(
            f"parameter '{name}' is complex ({param.dtype}), which a sparse exchange cannot order "
            "by magnitude: use torch.view_as_real, or no sparse compression"
        )
    if param.layout != torch.strided:
        raise UnsupportedError(f"parameter '{name}' has layout {param.layout}, not a dense one")
    if param.dtype not in DTYPES:
        raise UnsupportedError(
            f"parameter '{name}' is {param.dtype}; a sparse exchange takes "
            f"{', '.join(DTYPES.values())}"
        )
    check_device(f"parameter '{name}'", param)


def check_devices(settings: Settings) -> None:
    """Raises UnsupportedError unless the parameters can be exchanged together."""
    device, nodes_first = common_device(settings.named), settings.compression.nodes_first
    if device.type != "cpu" and nodes_first is True and not OnDevice.adds_up_nodes:
        raise UnsupportedError(
            f"nodes_first=True takes no gradients of device '{device}': residuals are added up on "
            "the CPU"
        )


def check_dense(settings: Settings, host: TorchHost) -> None:
    """Raises UnsupportedError if the host cannot reduce dense gradients on their device.

    An adaptive compression sends all gradients dense while it measures.
    """
    compression, device = settings.compression, common_device(settings.named)
    adaptive = compression.adaptive
    dense = [
        name
        for name, one in settings.named
        if adaptive or not compression.takes(shard_of(one).shape)
    ]
    if dense:
        preset = type(compression).__name__
        why = f"{preset} measures dense steps first" if adaptive else "it is small"
        host.require_sums_on(device, f"gradients of '{dense[0]}' on device '{device}' ({why})")
