"""The reduction over the ranks: an average or a sum, as a sparse exchange honours it."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from types import ModuleType
from typing import Any

from hvd_sparse.errors import InvalidArgumentError, UnsupportedError

_REFUSED_OPS = ("Adasum", "Min", "Max", "Product")


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """An average or a sum over the ranks.

    Attributes:
        averages: True for an average.
        gradient_predivide_factor: The factor by which gradients are divided before the sum.
    """

    averages: bool
    gradient_predivide_factor: float

    @classmethod
    def checked(cls, *, averages: bool, gradient_predivide_factor: float) -> Reduction:
        """Returns the reduction that a user has asked for.

        Raises:
            InvalidArgumentError: The factor is not a finite number above 0, or goes with a sum.
        """
        if not isinstance(gradient_predivide_factor, Real):
            raise InvalidArgumentError(
                f"gradient_predivide_factor must be a number > 0, got {gradient_predivide_factor!r}"
            )
        factor = float(gradient_predivide_factor)
        if not 0 < factor < float("inf"):
            raise InvalidArgumentError(f"gradient_predivide_factor must be > 0, got {factor}")
        if factor != 1.0 and not averages:
            raise InvalidArgumentError("gradient_predivide_factor not supported with op != Average")
        return cls(averages=averages, gradient_predivide_factor=factor)

    def scales(self, size: int) -> tuple[float, float]:
        """Returns the factors of gradients added to the residual, and of sums written back."""
        if not self.averages:
            return 1.0, 1.0
        return 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor / size

    def of_horovod(self, hvd: ModuleType) -> dict[str, Any]:
        """Returns the same reduction as arguments of the allreduce of a module of Horovod's."""
        return {
            "op": hvd.Average if self.averages else hvd.Sum,
            "prescale_factor": 1.0 / self.gradient_predivide_factor,
            "postscale_factor": self.gradient_predivide_factor,
        }

    def describe(self) -> dict[str, str]:
        """Returns the options that must be the same on all ranks, by name."""
        return {
            "op": "Average" if self.averages else "Sum",
            "gradient_predivide_factor": str(self.gradient_predivide_factor),
        }


def checked_reduction(
    hvd: ModuleType,
    *,
    op: int | None = None,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
) -> Reduction:
    """Returns the reduction that a user of Horovod has asked for.

    Args:
        hvd: `horovod.torch` or `horovod.tensorflow`.
        op: `hvd.Average` or `hvd.Sum`; None: Average.
        gradient_predivide_factor: A finite number above 0.
        num_groups: Must be 0, and `groups` None: a sparse exchange has buckets.
        groups: Must be None.

    Raises:
        InvalidArgumentError: The factor lies outside its limits, or does not go with the op.
        UnsupportedError: A sparse exchange cannot honour the op, or groups.
    """
    op = hvd.Average if op is None else op
    if op not in (hvd.Average, hvd.Sum):
        names = {getattr(hvd, name): name for name in _REFUSED_OPS if hasattr(hvd, name)}
        raise UnsupportedError(
            f"op={names.get(op, op)} cannot be used with a sparse compression: only Average and Sum"
        )
    if groups is not None or num_groups != 0:
        raise UnsupportedError(
            "groups and num_groups do not apply to a sparse compression: adaptive LAGS chooses "
            "what travels together; without a plan Layers(bucket_numel=...) does"
        )
    return Reduction.checked(
        averages=op == hvd.Average, gradient_predivide_factor=gradient_predivide_factor
    )
