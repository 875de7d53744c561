"""What gradients become over the ranks: Horovod's op and factors that a sparse exchange honours."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from hvd_sparse.errors import InvalidArgumentError, UnsupportedError

_REFUSED_OPS = ("Adasum", "Min", "Max", "Product")


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """An average or a sum over the ranks.

    Attributes:
        op: Horovod's number of it.
        averages: Whether it is the average.
        gradient_predivide_factor: As Horovod has it: gradients are divided by it before the sum.
    """

    op: int
    averages: bool
    gradient_predivide_factor: float

    def scales(self, size: int) -> tuple[float, float]:
        """Factors of the gradients into the residual and of the sum into the gradients."""
        if not self.averages:
            return 1.0, 1.0
        return 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor / size

    def of_horovod(self) -> dict[str, Any]:
        """The same for Horovod's own allreduce."""
        return {
            "op": self.op,
            "prescale_factor": 1.0 / self.gradient_predivide_factor,
            "postscale_factor": self.gradient_predivide_factor,
        }

    def describe(self) -> dict[str, str]:
        """By name, what must be the same on all ranks."""
        return {
            "op": "Average" if self.averages else "Sum",
            "gradient_predivide_factor": str(self.gradient_predivide_factor),
        }


def checked_reduction(
    hvd: ModuleType,
    *,
    op: int,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
) -> Reduction:
    """The reduction that a user of Horovod has asked for.

    Args:
        hvd: `horovod.torch` or `horovod.tensorflow`.
        op: Its Average or Sum.
        gradient_predivide_factor: Above 0.
        num_groups: 0, as `groups` is None: a sparse exchange has buckets.
        groups: None.

    Raises:
        InvalidArgumentError: The factor lies outside its limits, or does not go with the op.
        UnsupportedError: A sparse exchange cannot honour the op, or groups.
    """
    if op not in (hvd.Average, hvd.Sum):
        names = {getattr(hvd, name): name for name in _REFUSED_OPS if hasattr(hvd, name)}
        raise UnsupportedError(
            f"op={names.get(op, op)} cannot be used with a sparse compression: only Average and Sum"
        )
    if groups is not None or num_groups != 0:
        raise UnsupportedError(
            "groups and num_groups do not apply to a sparse compression: adaptive LAGS chooses "
            "what travels together; with adaptive=False its bucket_numel says how many elements do"
        )
    factor = float(gradient_predivide_factor)
    if not 0 < factor < float("inf"):
        raise InvalidArgumentError(f"gradient_predivide_factor must be > 0, got {factor}")
    if factor != 1.0 and op != hvd.Average:
        raise InvalidArgumentError("gradient_predivide_factor not supported with op != Average")
    return Reduction(op=op, averages=op == hvd.Average, gradient_predivide_factor=factor)
