"""The interface of the ways in which an optimizer takes its steps, and the plain way.

The other ways are local steps (local_steps.py), steps that do not wait (forward.py), and those of a
DistributedDataParallel (hvd_sparse/ddp/bucket_steps.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from hvd_sparse.errors import GradientInFlightError
from hvd_sparse.exchange.interval import Interval
from hvd_sparse.pytorch import guards
from hvd_sparse.pytorch.discards import Discards
from hvd_sparse.pytorch.gradient_exchange import GradientExchange, Phase
from hvd_sparse.pytorch.slots import Slot


class StepWay(ABC):
    """A way of taking an optimizer's step; it owns the exchange, which does not refer to it.

    Args:
        exchange: The exchange, which has taken no step yet.

    Attributes:
        exchange: The exchange of gradients.
        interval: Counts local steps; None if every step is exchanged.
    """

    def __init__(self, exchange: GradientExchange) -> None:
        self.exchange = exchange
        self.interval: Interval | None = None

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until every gradient is the average; a no-op until gradients arrive again."""

    def lend_averages(self) -> None:
        """Called when the program asks for averages, which it may change or throw away."""
        self.exchange.rates.clipping_seen()

    @abstractmethod
    def stepping(self, *, synchronized: bool) -> None:
        """Called before the optimizer's step.

        Args:
            synchronized: True if the user says that `synchronize` was called.
        """

    @abstractmethod
    def update(self) -> None:
        """Called after `stepping`, before step() without a closure moves the weights."""

    @abstractmethod
    def stepped(self) -> None:
        """Called after the optimizer's step."""

    @abstractmethod
    def forget_gradients(self, reason: str) -> None:
        """Lets gradients be zeroed; refuses to, with this reason, if they are being exchanged."""

    @abstractmethod
    def refuse_if_busy(self, reason: str) -> None:
        """Waits for updates in flight; ends the exchange, with this reason, amid a step."""

    @abstractmethod
    def settle(self, *, quietly: bool = False) -> None:
        """Waits for updates that step() has left in flight.

        Args:
            quietly: True to log the error of a refused one; otherwise it is raised.
        """

    @abstractmethod
    def local_state(self) -> dict[str, Any] | None:
        """Returns a copy of all state of local steps, that of the interval included."""

    @abstractmethod
    def load_local_state(self, saved: dict[str, Any] | None) -> None:
        """Restores what `local_state` returned, between two steps."""

    @abstractmethod
    def adopt_local_state(self, saved: dict[str, Any] | None, source: int) -> None:
        """Begins local steps anew, from weights that are equal on all ranks. Collective.

        Args:
            saved: The state from `local_state` on this rank; None if it has just joined.
            source: The rank whose number of local steps and outer momentum all ranks adopt.
        """

    @abstractmethod
    def meet(self) -> None:
        """Ends an interval of local steps: weights are equal on all ranks then. Collective."""

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Lends the parameters weights that are the same on all ranks, within the context."""
        yield

    def undo_unfinished(self) -> None:
        """Undoes a step that the optimizer has not taken; ends the exchange if it is under way."""
        self.settle(quietly=True)

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks; returns once no memory is being written any more."""
        self.exchange.fail(reason)

    def detach(self, reason: str) -> None:
        """Ends the exchange on all ranks, between two steps; accepts no more gradients."""
        self.settle(quietly=True)
        self.exchange.detach(reason)

    def close(self) -> None:
        """Ends this rank's part, or in mid-step that of all ranks; accepts no more gradients."""
        self.settle(quietly=True)
        self.exchange.close()


class PlainSteps(StepWay):
    """Steps before which all gradients are averages; after them, nothing is in flight.

    Args:
        exchange: The exchange.
        receiver: The receiver of gradients that arrive at parameters; None: the exchange.

    Attributes:
        slot_type: Class of the exchange's slots: where its gradients lie.
        discards: Undoes steps that are thrown away.
    """

    slot_type: ClassVar[type[Slot]] = Slot

    def __init__(self, exchange: GradientExchange, receiver: guards.Receiver | None = None) -> None:
        super().__init__(exchange)
        exchange.listen(exchange if receiver is None else receiver)
        self.discards = Discards(exchange)
        exchange.driven.remembers = True

    def lend_averages(self) -> None:
        """Remembers what a step takes from now on, so that it can be undone."""
        super().lend_averages()
        self.exchange.driven.remembers = True
        self.discards.watch()

    def synchronize(self) -> None:
        """Waits until every gradient is the average; see `GradientExchange.complete`.

        Raises:
            NonFiniteGradientError: On every rank, if a gradient is not finite on one.
            GradientInFlightError: A gradient was changed after backward. The exchange has ended.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        if self.exchange.phase is not Phase.EXCHANGED:
            self.exchange.complete()

    def stepping(self, *, synchronized: bool) -> None:
        """Called before the optimizer's step.

        Raises:
            GradientInFlightError: `synchronize` was not called, and the user says that it was.
        """
        if synchronized:
            self.refuse_if_busy(
                "optimizer.step() was called within skip_synchronize(), but not after synchronize()"
            )
        self.discards.settle_missing()

    def update(self) -> None:
        """Makes gradients averages, and leaves the momentum to the exchange."""
        if self.slot_type.at_parameter and self.exchange.phase is Phase.GATHERING:
            self.exchange.driven.remembers = False  # no such step can be thrown away
        self.synchronize()
        self.exchange.momentum.hide()

    def stepped(self) -> None:
        """Ends the optimizer's step.

        Raises:
            GradientInFlightError: step() itself computed gradients that were not exchanged.
        """
        self.refuse_if_busy("optimizer.step() computed gradients without exchanging them")
        self.discards.applied()
        self.exchange.release()

    def forget_gradients(self, reason: str) -> None:
        """Lets gradients be zeroed; raises GradientInFlightError if they are being exchanged."""
        self.refuse_if_busy(reason)
        self.discards.drop()

    def refuse_if_busy(self, reason: str) -> None:
        """Ends the exchange if gradients have arrived but are not exchanged yet.

        Raises:
            GradientInFlightError: There are such gradients; other ranks get an ExchangeFailedError.
            ExchangeFailedError: There are such gradients, but the exchange had ended before.
        """
        if self.exchange.phase is Phase.GATHERING:
            reason = guards.step_without_exchange(self.exchange.slots) or reason
            raise self.exchange.end(GradientInFlightError(reason))

    def settle(self, *, quietly: bool = False) -> None:
        """Undoes a step that was thrown away; no update is in flight."""
        if not quietly or self.exchange.driven.can_undo:
            self.discards.settle()

    def undo_unfinished(self) -> None:
        """Undoes a step that the optimizer has not taken; ends the exchange if it is under way."""
        if self.exchange.phase is Phase.GATHERING:
            self.fail("a module was wrapped anew amid a step")
            self.exchange.driven.undo(self.exchange.parameters)
            self.exchange.release()
        self.discards.drop()

    def local_state(self) -> dict[str, Any] | None:
        """Returns None: there are no local steps."""
        return None

    def load_local_state(self, saved: dict[str, Any] | None) -> None:
        """Does nothing: there are no local steps."""

    def adopt_local_state(self, saved: dict[str, Any] | None, source: int) -> None:
        """Does nothing: there are no local steps."""

    def meet(self) -> None:
        """Does nothing: there are no local steps."""
