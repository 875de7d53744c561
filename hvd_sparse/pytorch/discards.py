"""Steps whose averages a program throws away before its optimizer steps: such a step is undone.

By then the exchange has taken this rank's gradients into residual and velocity, from which they
would reach the weights later. Without a compression they would not: a spike that is dropped, a step
that a gradient scaler skips, a loss whose gradient reaches another optimizer's parameters. So both
become what they were before the step, bit for bit.

The optimizer's zero_grad() tells that gradients are thrown away. Any other way of zeroing them is
found by looking at them just before the next backward pass adds to them.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch.utils.hooks import RemovableHandle

from hvd_sparse import log
from hvd_sparse.errors import GradientInFlightError
from hvd_sparse.pytorch import guards
from hvd_sparse.pytorch.gradient_exchange import GradientExchange, Phase
from hvd_sparse.pytorch.opaque import opaque
from hvd_sparse.pytorch.slots import Slot

_MANY = 16  # steps in a row that are thrown away, after which a warning is logged


class Discards:
    """Undoes the steps of one exchange that are thrown away.

    Args:
        exchange: The exchange.
    """

    def __init__(self, exchange: GradientExchange) -> None:
        self._exchange = exchange
        self._slots = [slot for slot in exchange.slots if slot.optimized]
        self._in_a_row = 0
        self._looked_in = -1  # PyTorch's number of a backward pass
        self._hooks: list[RemovableHandle] = []
        weakref.finalize(self, guards.remove, self._hooks).atexit = False

    def watch(self) -> None:
        """Looks at the gradients of an exchanged step before backward adds to them, from now on."""
        if self._hooks:
            return
        me = weakref.ref(self)

        def before(_: torch.Tensor) -> None:
            discards = me()
            if discards is not None:
                discards._before_gradient()

        hook = opaque(before)
        self._hooks += [
            slot.param.register_hook(hook)  # type: ignore[no-untyped-call]
            for slot in self._exchange.slots
            if slot.param.requires_grad
        ]

    def applied(self) -> None:
        """Notes that the optimizer has stepped."""
        self._in_a_row = 0

    def drop(self, slots: Sequence[Slot] | None = None) -> None:
        """Undoes an exchanged step, or its part for some parameters.

        Args:
            slots: The slots of these parameters; None: all that the optimizer updates.

        Raises:
            GradientInFlightError: The state before the step was not kept.
        """
        exchange = self._exchange
        if exchange.phase is not Phase.EXCHANGED or slots == []:
            return
        if not exchange.driven.can_undo:
            raise GradientInFlightError(
                "the gradients of an exchanged step are thrown away, and the residuals before it "
                "were not kept, since optimizer.step() has exchanged the gradients of the steps "
                "before by itself: call optimizer.synchronize() in each step if some are dropped"
            )
        names = {slot.name for slot in (self._slots if slots is None else slots)}
        exchange.driven.undo(names)
        if slots is not None:
            return
        exchange.release()
        self._in_a_row += 1
        if self._in_a_row == _MANY:
            log.logger.warning(
                "the gradients of %d steps in a row were exchanged and then thrown away, since "
                "optimizer.step() was not called: freeze parameters whose gradients are not used "
                "by requires_grad_(False), which exchanges nothing",
                _MANY,
            )

    def settle(self) -> Slot | None:
        """Undoes an exchanged step as far as its gradients are missing, or all of them are zero.

        Returns:
            A slot whose gradient was kept; None if there is none.
        """
        if self._exchange.phase is not Phase.EXCHANGED:
            return None
        kept = next((slot for slot in self._slots if _is_kept(slot)), None)
        self.drop(None if kept is None else self._missing())
        return kept

    def settle_missing(self) -> None:
        """Undoes an exchanged step for parameters whose gradients are missing, as step() begins."""
        self.drop(self._missing())

    def _missing(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.param.grad is None]

    def _before_gradient(self) -> None:
        exchange, backward = self._exchange, torch._C._current_graph_task_id()
        if exchange.phase is not Phase.EXCHANGED or exchange.paused:
            return
        if self._looked_in == backward:
            return
        self._looked_in = backward
        try:
            with torch.no_grad():
                kept = self.settle()
            if kept is not None:
                guards.check_not_an_average(kept, has_momentum=exchange.momentum.exists)
        except BaseException as error:
            raise exchange.end(error)  # noqa: B904  # mostly the same error


def _is_kept(slot: Slot) -> bool:
    grad = slot.param.grad
    return grad is not None and bool(grad.any())
