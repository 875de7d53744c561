"""What a rank does to its own gradient before it is exchanged: clipping, then weight decay.

Both come before error feedback, so the residual holds what they have made of the gradient, and the
law counts that.
"""

from __future__ import annotations

import math

import torch

from hvd_sparse.torch.loss_scale import LossScale
from hvd_sparse.torch.settings import Settings
from hvd_sparse.torch.slots import Slot


class LocalGradient:
    """Clips gradients and adds weight decay, in place, where the compression asks for it.

    A rank's share of a result is what its gradient adds to it: 1 / P of the gradient where the
    ranks average, all of it where they sum. The norm of each tensor's share is clipped to
    clip_norm / sqrt(P): the norm of the result is then at most clip_norm if the ranks' gradients
    are orthogonal, as noise is nearly. The result gets weight_decay times the weights, of which
    each rank adds its share.

    Args:
        settings: What the user asked for.
        size: Number of ranks, P.
        loss_scale: Of the gradients.

    Reference:
        Lin et al., Deep Gradient Compression, https://arxiv.org/abs/1712.01887, section 3.2: "local
        gradient clipping".
    """

    def __init__(self, settings: Settings, *, size: int, loss_scale: LossScale) -> None:
        compression = settings.compression
        share = math.prod(settings.reduction.scales(size))
        self._limit = (
            None
            if compression.clip_norm is None
            else compression.clip_norm / (share * math.sqrt(size))
        )
        self._decay = compression.weight_decay / (share * size)
        self._loss_scale = loss_scale

    def prepare(self, slot: Slot) -> None:
        """Does so to a gradient that is complete; one that is missing counts as zero."""
        if self._limit is None and self._decay == 0:
            return
        grad, scale = slot.gradient(), self._loss_scale.value
        if self._limit is not None:
            _clip(grad, self._limit * scale)
        if self._decay:
            grad.add_(slot.param.detach(), alpha=self._decay * scale)


def _clip(grad: torch.Tensor, limit: float) -> None:
    """Shortens a gradient to a norm; what is not finite in it stays so, and does not count."""
    norm = _norm(grad, torch.promote_types(grad.dtype, torch.float32))
    if not math.isfinite(norm):
        norm = _norm(torch.where(torch.isfinite(grad), grad, 0.0), torch.float64)
    if norm > limit:
        grad.mul_(limit / norm)


def _norm(tensor: torch.Tensor, dtype: torch.dtype) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=dtype))
