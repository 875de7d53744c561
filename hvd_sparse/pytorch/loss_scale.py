"""Loss scaling: residuals hold gradients without the scale; all ranks skip a step, or none does."""

from __future__ import annotations

from typing import Any


class LossScale:
    """The loss scale of a step's gradients.

    Args:
        scaler: The user's torch.amp.GradScaler, or an object with its get_scale(); None if there is
            none.
    """

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler
        self._value: float | None = None

    @property
    def skips(self) -> bool:
        """True if a scaler skips steps whose gradients are not finite."""
        # A disabled scaler steps whatever the gradients are.
        return self._scaler is not None and getattr(self._scaler, "is_enabled", lambda: True)()

    @property
    def value(self) -> float:
        """This step's scale; read once, when first needed, since that may wait for a device."""
        if self._scaler is None:
            return 1.0
        if self._value is None:
            self._value = float(self._scaler.get_scale())
        return self._value

    def release(self) -> None:
        """Prepares for the next step."""
        self._value = None
