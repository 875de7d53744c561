"""A rank's work on its own gradient: loss scale, clipping and weight decay, in place.

See hvd_sparse/exchange/local_share.py. Residuals hold gradients without the loss scale.
"""

from __future__ import annotations

import math

import torch

from hvd_sparse.exchange.local_share import LocalShare
from hvd_sparse.pytorch.settings import Settings
from hvd_sparse.pytorch.slots import Slot


class LocalGradient:
    """A rank's own gradients in one step after another.

    Args:
        settings: The user's settings. A loss scale is a torch.amp.GradScaler, or an object with its
            get_scale().
        size: Number of ranks.
    """

    def __init__(self, settings: Settings, *, size: int) -> None:
        self._share = LocalShare.of(settings.compression, settings.reduction, size=size)
        self._scaler = settings.grad_scaler
        self._loss_scale: float | None = None

    @property
    def skips_steps(self) -> bool:
        """True if a scaler skips steps whose gradients are not finite, on all ranks or on none."""
        # A disabled scaler steps whatever the gradients are.
        return self._scaler is not None and getattr(self._scaler, "is_enabled", lambda: True)()

    @property
    def loss_scale(self) -> float:
        """This step's scale; read once, when first needed, since that may wait for a device."""
        if self._scaler is None:
            return 1.0
        if self._loss_scale is None:
            self._loss_scale = float(self._scaler.get_scale())
        return self._loss_scale

    def prepare(self, slot: Slot) -> None:
        """Clips a complete gradient and adds weight decay; a missing gradient counts as zero.

        A gradient that another optimizer applies stays as it is.
        """
        limit, decay = self._share.limit, self._share.decay
        if not slot.optimized or (limit is None and decay == 0):
            return
        grad, scale = slot.gradient(), self.loss_scale
        if limit is not None:
            if slot.support is not None:  # what is not exchanged does not count
                grad.copy_(slot.spread(slot.gather(grad)).view(grad.shape))
            _clip(grad, limit * scale)
        if decay:
            grad.add_(slot.weights, alpha=decay * scale)

    def release(self) -> None:
        """Prepares for the next step."""
        self._loss_scale = None


def _clip(grad: torch.Tensor, limit: float) -> None:
    """Clips a gradient to a norm; entries that are not finite stay so, and do not count."""
    norm = _norm(grad, torch.promote_types(grad.dtype, torch.float32))
    if not math.isfinite(norm):
        norm = _norm(torch.where(torch.isfinite(grad), grad, 0.0), torch.float64)
    if norm > limit:
        grad.mul_(limit / norm)


def _norm(tensor: torch.Tensor, dtype: torch.dtype) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=dtype))
