"""Steps that begin and end within one loss.backward(), after which gradients are averages."""

from __future__ import annotations

from typing import ClassVar

import torch

from hvd_sparse.errors import GradientInFlightError
from hvd_sparse.pytorch.gradient_exchange import Phase
from hvd_sparse.pytorch.host import Link
from hvd_sparse.pytorch.plain_steps import PlainSteps
from hvd_sparse.pytorch.settings import Settings


class BackwardSteps(PlainSteps):
    """Steps whose gradients are averages once loss.backward() returns.

    Attributes:
        incomplete: Why a step may not have ended when optimizer.step() is called, for an error.
        last_pass: How the last backward pass of a step is run, for an error.
    """

    incomplete: ClassVar[str]
    last_pass: ClassVar[str]

    def __init__(self, optimizer: torch.optim.Optimizer, settings: Settings, link: Link) -> None:
        super().__init__(optimizer, settings, link)
        self._average: tuple[torch.Tensor, int] | None = None

    def note_average(self) -> None:
        """Remembers the averages as they are after backward, so that clipping is noticed."""
        slot = next((slot for slot in self.slots if slot.optimized), None)
        grad = None if slot is None else slot.grad
        self._average = None if grad is None else (grad, grad._version)

    def synchronize(self) -> None:
        """Checks, before the optimizer steps, that its gradients are averages.

        Raises:
            GradientInFlightError: They are this rank's own, or loss.backward() has not ended.
        """
        if self.phase is Phase.GATHERING:
            self.refuse_if_busy(
                f"optimizer.step() was called after a loss.backward() that failed{self.incomplete}"
            )
        if self.phase is Phase.IDLE:
            self._check_nothing_new()
        if self._average is not None:
            grad, version = self._average
            if grad._version != version:
                self.rates.clipping_seen()
            self._average = None

    def _check_nothing_new(self) -> None:
        """Refuses a step with gradients that no backward pass has exchanged."""
        for slot in self.slots:
            grad = slot.grad
            if slot.optimized and grad is not None and bool(grad.any()):
                raise GradientInFlightError(
                    f"optimizer.step() was called with a gradient of '{slot.name}' that was not "
                    "exchanged since the last step. Run the last loss.backward() before each step "
                    f"{self.last_pass}"
                )
