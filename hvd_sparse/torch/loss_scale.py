"""Loss scaling: residuals hold gradients without the scale, and all ranks skip a step or none."""

from __future__ import annotations

from typing import Any


class LossScale:
    """The factor of a step's gradients.

    Args:
        scaler: The user's torch.amp.GradScaler, or what has its get_scale(); None: there is none.
    """

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler
        self._value: float | None = None

    @property
    def skips(self) -> bool:
        """Whether somebody skips a step whose gradients are not finite."""
        # A disabled scaler steps whatever the gradients are.
        return self._scaler is not None and getattr(self._scaler, "is_enabled", lambda: True)()

    @property
    def value(self) -> float:
        """Of this step: asked for once, when first needed, since that may wait for a device."""
        if self._scaler is None:
            return 1.0
        if self._value is None:
            self._value = float(self._scaler.get_scale())
        return self._value

    def release(self) -> None:
        """Makes ready for the next step."""
        self._value = None
