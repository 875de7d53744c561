"""Steps before which all gradients are averages, and which are undone if these are thrown away.

By then the exchange has taken this rank's gradients into residual and velocity, from which they
would reach the weights later. Without a compression they would not: a spike that is dropped, a step
that a gradient scaler skips, a loss whose gradient reaches another optimizer's parameters. So both
become what they were before the step, bit for bit.

The optimizer's zero_grad() tells that gradients are thrown away. Any other way of zeroing them is
found by looking at them just before the next backward pass adds to them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvd_sparse import log
from hvd_sparse.errors import GradientInFlightError
from hvd_sparse.pytorch import guards
from hvd_sparse.pytorch.gradient_exchange import GradientExchange, Phase
from hvd_sparse.pytorch.hooks import calling
from hvd_sparse.pytorch.host import Link
from hvd_sparse.pytorch.settings import Settings
from hvd_sparse.pytorch.slots import Slot

_MANY = 16  # steps in a row that are thrown away, after which a warning is logged


class PlainSteps(GradientExchange):
    """Steps before which all gradients are averages; after them, nothing is in flight."""

    def __init__(self, optimizer: torch.optim.Optimizer, settings: Settings, link: Link) -> None:
        super().__init__(optimizer, settings, link)
        self.steps.remembers = True
        self._dropped_in_a_row = 0
        self._watches = False
        self._looked_in = -1  # PyTorch's number of a backward pass

    def lend_averages(self) -> None:
        """Remembers what a step takes from now on, so that it can be undone."""
        super().lend_averages()
        self.steps.remembers = True
        self.watch()

    def synchronize(self) -> None:
        """Waits until every gradient is the average; see `complete`.

        Raises:
            NonFiniteGradientError: On every rank, if a gradient is not finite on one.
            GradientInFlightError: A gradient was changed after backward. The exchange has ended.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        if self.phase is not Phase.EXCHANGED:
            self.complete()

    def stepping(self, *, synchronized: bool) -> None:
        """Called before the optimizer's step: undoes it for parameters without gradients.

        Raises:
            GradientInFlightError: `synchronize` was not called, and the user says that it was.
        """
        if synchronized:
            self.refuse_if_busy(
                "optimizer.step() was called within skip_synchronize(), but not after synchronize()"
            )
        self.drop(self._missing())

    def update(self) -> None:
        """Makes gradients averages."""
        if self.slot_type.at_parameter and self.phase is Phase.GATHERING:
            self.steps.remembers = False  # no such step can be thrown away
        self.synchronize()

    def stepped(self) -> None:
        """Ends the optimizer's step.

        Raises:
            GradientInFlightError: step() itself computed gradients that were not exchanged.
        """
        self.refuse_if_busy("optimizer.step() computed gradients without exchanging them")
        self._dropped_in_a_row = 0
        self.release()

    def forget_gradients(self, reason: str) -> None:
        """Lets gradients be zeroed; raises GradientInFlightError if they are being exchanged."""
        self.refuse_if_busy(reason)
        self.drop()

    def refuse_if_busy(self, reason: str) -> None:
        """Ends the exchange if gradients have arrived but are not exchanged yet.

        Raises:
            GradientInFlightError: There are such gradients; other ranks get an ExchangeFailedError.
            ExchangeFailedError: There are such gradients, but the exchange had ended before.
        """
        if self.phase is Phase.GATHERING:
            reason = guards.step_without_exchange(self.slots) or reason
            raise self.end(GradientInFlightError(reason))

    def settle(self, *, quietly: bool = False) -> None:
        """Undoes a step that was thrown away; no update is in flight."""
        if not quietly or self.steps.can_undo:
            self._drop_zeroed()

    def undo_unfinished(self) -> None:
        """Undoes a step that the optimizer has not taken; ends the exchange if it is under way."""
        if self.phase is Phase.GATHERING:
            self.fail("a module was wrapped anew amid a step")
            self.steps.undo(self.parameters)
            self.release()
        self.drop()

    def watch(self) -> None:
        """Looks at the gradients of an exchanged step before backward adds to them, from now on."""
        if not self._watches:
            self._watches = True
            hook = calling(self._before_gradient)
            self._hooks += [
                slot.param.register_hook(hook)  # type: ignore[no-untyped-call]
                for slot in self.slots
                if slot.param.requires_grad
            ]

    def _before_gradient(self) -> None:
        backward = torch._C._current_graph_task_id()
        if self.phase is not Phase.EXCHANGED or self._looked_in == backward:
            return
        self._looked_in = backward
        with self.ending():
            with torch.no_grad():
                kept = self._drop_zeroed()
            if kept is not None:
                guards.check_not_an_average(kept, has_momentum=self.momentum.exists)

    def _drop_zeroed(self) -> Slot | None:
        """Undoes an exchanged step as far as its gradients are missing, or all of them are zero.

        Returns:
            A slot whose gradient was kept; None if there is none.
        """
        if self.phase is not Phase.EXCHANGED:
            return None
        kept = next((slot for slot in self.slots if slot.optimized and is_kept(slot)), None)
        self.drop(None if kept is None else self._missing())
        return kept

    def drop(self, slots: Sequence[Slot] | None = None) -> None:
        """Undoes an exchanged step, or its part for some parameters.

        Args:
            slots: The slots of these parameters; None: all that the optimizer updates.

        Raises:
            GradientInFlightError: The state before the step was not kept.
        """
        if self.phase is not Phase.EXCHANGED or slots == []:
            return
        if not self.steps.can_undo:
            raise GradientInFlightError(
                "the gradients of an exchanged step are thrown away, and the residuals before it "
                "were not kept, since optimizer.step() has exchanged the gradients of the steps "
                "before by itself: call optimizer.synchronize() in each step if some are dropped"
            )
        dropped = [slot for slot in self.slots if slot.optimized] if slots is None else slots
        self.steps.undo({slot.name for slot in dropped})
        if slots is not None:
            return
        self.release()
        self._dropped_in_a_row += 1
        if self._dropped_in_a_row == _MANY:
            log.logger.warning(
                "the gradients of %d steps in a row were exchanged and then thrown away, since "
                "optimizer.step() was not called: freeze parameters whose gradients are not used "
                "by requires_grad_(False), which exchanges nothing",
                _MANY,
            )

    def _missing(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.optimized and slot.param.grad is None]


def is_kept(slot: Slot) -> bool:
    """Returns true if the program has left a gradient that is not zero."""
    grad = slot.grad
    return grad is not None and bool(grad.any())
