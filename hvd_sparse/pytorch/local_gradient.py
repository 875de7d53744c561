"""Clipping and weight decay of a rank's own gradient, in place.

See hvd_sparse/exchange/local_share.py.
"""

from __future__ import annotations

import math

import torch

from hvd_sparse.exchange.local_share import LocalShare
from hvd_sparse.pytorch.loss_scale import LossScale
from hvd_sparse.pytorch.settings import Settings
from hvd_sparse.pytorch.slots import Slot


class LocalGradient:
    """Clips gradients and adds weight decay, in place, if the compression asks for it.

    Args:
        settings: The user's settings.
        size: Number of ranks.
        loss_scale: Loss scale of the gradients.
    """

    def __init__(self, settings: Settings, *, size: int, loss_scale: LossScale) -> None:
        self._share = LocalShare.of(settings.compression, settings.reduction, size=size)
        self._loss_scale = loss_scale

    def prepare(self, slot: Slot) -> None:
        """Clips a complete gradient and adds weight decay; a missing gradient counts as zero.

        A gradient that another optimizer applies stays as it is.
        """
        limit, decay = self._share.limit, self._share.decay
        if not slot.optimized or (limit is None and decay == 0):
            return
        grad, scale = slot.gradient(), self._loss_scale.value
        if limit is not None:
            _clip(grad, limit * scale)
        if decay:
            grad.add_(slot.param.detach(), alpha=decay * scale)


def _clip(grad: torch.Tensor, limit: float) -> None:
    """Clips a gradient to a norm; entries that are not finite stay so, and do not count."""
    norm = _norm(grad, torch.promote_types(grad.dtype, torch.float32))
    if not math.isfinite(norm):
        norm = _norm(torch.where(torch.isfinite(grad), grad, 0.0), torch.float64)
    if norm > limit:
        grad.mul_(limit / norm)


def _norm(tensor: torch.Tensor, dtype: torch.dtype) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=dtype))
