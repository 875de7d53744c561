"""What the arguments of DistributedOptimizer amount to, once they have been found good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import horovod.torch as hvd
import torch

from hvd_sparse.compression import Compression, as_compression
from hvd_sparse.errors import InvalidArgumentError, UnsupportedError
from hvd_sparse.schedules import checked_count
from hvd_sparse.torch.slots import DTYPES

_OPS = {hvd.Average: "Average", hvd.Sum: "Sum"}
_REFUSED_OPS = {hvd.Adasum: "Adasum", hvd.Min: "Min", hvd.Max: "Max", hvd.Product: "Product"}
_REFUSED_OPTIMIZERS = {
    torch.optim.LBFGS: "it evaluates its closure many times a step",
    torch.optim.SparseAdam: "it needs sparse gradients, and a sparse exchange returns dense ones",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of DistributedOptimizer, under Horovod's names."""

    compression: Compression
    backward_passes_per_step: int
    op: int
    gradient_predivide_factor: float
    sparse_as_dense: bool

    @classmethod
    def checked(
        cls,
        optimizer: torch.optim.Optimizer,
        compression: object,
        *,
        backward_passes_per_step: int = 1,
        op: int = hvd.Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        sparse_as_dense: bool = False,
    ) -> Settings:
        """Refuses what a sparse exchange cannot do.

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
        check_op(op)
        if groups is not None or num_groups != 0:
            raise UnsupportedError(
                "groups and num_groups do not apply to a sparse compression: use its bucket_numel "
                "to say how many elements travel together"
            )
        factor = float(gradient_predivide_factor)
        if not 0 < factor < float("inf"):
            raise InvalidArgumentError(f"gradient_predivide_factor must be > 0, got {factor}")
        if factor != 1.0 and op != hvd.Average:
            raise InvalidArgumentError("gradient_predivide_factor not supported with op != Average")
        return cls(
            compression=as_compression(compression),
            backward_passes_per_step=checked_passes(backward_passes_per_step),
            op=op,
            gradient_predivide_factor=factor,
            sparse_as_dense=bool(sparse_as_dense),
        )

    def scales(self, size: int) -> tuple[float, float]:
        """Factors of the gradients into the residual and of the sum into the gradients."""
        if self.op == hvd.Sum:
            return 1.0, 1.0
        return 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor / size

    def describe(self) -> dict[str, str]:
        """By name, what must be the same on all ranks."""
        return {
            "compression": repr(self.compression),
            "backward_passes_per_step": str(self.backward_passes_per_step),
            "op": _OPS[self.op],
            "gradient_predivide_factor": str(self.gradient_predivide_factor),
            "sparse_as_dense": str(self.sparse_as_dense),
        }


def check_op(op: int) -> None:
    """Raises UnsupportedError unless `op` is Horovod's Average or Sum."""
    if op not in _OPS:
        raise UnsupportedError(
            f"op={_REFUSED_OPS.get(op, op)} cannot be used with a sparse compression: "
            "only Average and Sum"
        )


def checked_passes(passes: int) -> int:
    """`passes` if it is a number of backward passes; raises InvalidArgumentError otherwise."""
    if isinstance(passes, int) and passes <= 0:
        raise InvalidArgumentError("backward_passes_per_step must be > 0")
    return checked_count("backward_passes_per_step", passes, low=1, high=2**31 - 1)


def check_parameter(name: str, param: torch.Tensor) -> None:
    """Raises UnsupportedError unless the gradients of `param` can be exchanged."""
    if param.is_complex():
        raise UnsupportedError(
            f"parameter '{name}' is complex ({param.dtype}), which a sparse exchange cannot order "
            "by magnitude: use torch.view_as_real, or one of Horovod's compressions"
        )
    if param.layout != torch.strided:
        raise UnsupportedError(f"parameter '{name}' has layout {param.layout}, not a dense one")
    if param.dtype not in DTYPES:
        raise UnsupportedError(
            f"parameter '{name}' is {param.dtype}; a sparse exchange takes "
            f"{', '.join(DTYPES.values())}"
        )
    if param.device.type != "cpu":
        raise UnsupportedError(
            f"parameter '{name}' is on device '{param.device}'; this version exchanges gradients "
            "on the CPU only"
        )
