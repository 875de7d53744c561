"""Ranks step by themselves, and meet now and then to average what they have done.

At a meeting, the exchange takes the differences between the last common weights and each rank's own
in place of gradients. They join the residuals, and what the exchange delivers moves the common
weights, with which all ranks go on: after each meeting, weights are bitwise equal on all ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from hvd_sparse.errors import (
    InvalidArgumentError,
    NonFiniteGradientError,
    UnsupportedError,
)
from hvd_sparse.exchange.messages import Messages
from hvd_sparse.local_steps import Interval, Outer
from hvd_sparse.pytorch import guards
from hvd_sparse.pytorch.attachment import require_attachment
from hvd_sparse.pytorch.gradient_exchange import GradientExchange
from hvd_sparse.pytorch.parameters import NamedParameters
from hvd_sparse.pytorch.settings import Settings
from hvd_sparse.pytorch.slots import Slot
from hvd_sparse.ranks.world import in_elastic_job


class DifferenceSlot(Slot):
    """A slot whose gradient is a difference of weights, and later the average of the ranks'.

    Attributes:
        difference: The tensor, shaped like the parameter; None between two meetings.
    """

    def __init__(self, name: str, param: torch.Tensor, passes: int) -> None:
        super().__init__(name, param, passes)
        self.difference: torch.Tensor | None = None

    def gradient(self) -> torch.Tensor:
        """Returns the difference."""
        assert self.difference is not None
        return self.difference

    def change(self) -> str | None:
        """Returns None: nobody else knows the memory."""
        return None

    def release(self, passes: int) -> None:
        """Prepares for the next meeting, at which each difference arrives once."""
        super().release(1)
        self.difference = None


class LocalStepsExchange(GradientExchange):
    """The exchange of one optimizer's differences of weights; see GradientExchange.

    A step of the exchange is a meeting. Parameters that the optimizer does not update are not
    exchanged.

    Attributes:
        interval: Counts the local steps until the next meeting.
    """

    _slot_type = DifferenceSlot

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named: NamedParameters,
        settings: Settings,
        *,
        messages: Messages,
        **options: Any,
    ) -> None:
        self.interval = Interval(settings.compression.local_steps)
        self._outer = _OuterSteps(settings.compression.outer)
        self._common: dict[str, torch.Tensor] = {}  # float32 at least
        self._checksum = 0  # of the common weights, if no meeting has made them
        self._messages = messages
        updated = {id(param) for group in optimizer.param_groups for param in group["params"]}
        super().__init__(
            optimizer,
            [(name, param) for name, param in named if id(param) in updated],
            replace(settings, compression=settings.compression.of_differences()),
            messages=messages,
            **options,
        )

    def _listen(self) -> list[RemovableHandle]:
        return []  # a meeting delivers

    def synchronize(self) -> None:
        """Does nothing: a local step takes this rank's own gradients.

        Raises:
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        self._exchange.check()

    def stepping(self) -> None:
        """Notes the common weights before the first local step of an interval."""
        if self.interval.taken == 0:
            self._note_common()

    @torch.no_grad()
    def _note_common(self) -> None:
        for slot in self._slots:
            param = slot.param.detach()
            common = self._common.get(slot.name)
            if common is not None and torch.equal(common.to(param.dtype), param):
                continue
            wide = torch.promote_types(param.dtype, torch.float32)  # the user has loaded them
            common = self._common[slot.name] = param.to(wide, copy=True)
            self._checksum = zlib.crc32(common.cpu().numpy().data, self._checksum)

    def stepped(self) -> None:
        """Counts a local step; the last one of an interval ends in a meeting. See `meet`."""
        if self.interval.step():
            self.meet()

    def meet(self) -> None:
        """Averages the ranks' differences, and moves all ranks to the new common weights.

        Raises:
            RanksDisagreeError: The ranks have not taken as many local steps.
            NonFiniteGradientError: A difference is not finite on some rank. All ranks have the
                last common weights again; the residuals keep the finite differences.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        reports = self._reports()
        if self.interval.taken == 0:
            return
        try:
            with torch.no_grad():
                for slot in reversed(self._slots):
                    assert isinstance(slot, DifferenceSlot)
                    common, param = self._common[slot.name], slot.param.detach()
                    start = common.to(param.dtype).to(common.dtype)
                    slot.difference = start - param
                    self.arrived(slot)
            super().synchronize()
        except NonFiniteGradientError:
            self._go_on(reports)
            raise
        with torch.no_grad():
            for slot in self._slots:
                self._outer.step(slot.name, self._common[slot.name], slot.gradient())
        self._go_on(reports)

    def _reports(self) -> list[list[float]]:
        """Returns the reports of all ranks, which have taken as many local steps. Collective."""
        rate = float(self._owner().param_groups[0]["lr"])
        report = self.interval.report(rate=rate, weights=self._checksum)
        try:
            reports = self._messages.gather(report, what="local_steps")()
            self.interval.check(reports)
        except BaseException as error:
            raise self._end(error)  # noqa: B904  # mostly the same error
        return reports

    @torch.no_grad()
    def _go_on(self, reports: list[list[float]]) -> None:
        """Begins an interval at the common weights."""
        for slot in self._slots:
            slot.param.copy_(self._common[slot.name])
        self._checksum = 0
        self.release()
        self.interval.meet(reports)

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Lends the parameters the last common weights within the context."""
        if self.interval.taken == 0:
            yield
            return
        own = {slot.name: slot.param.detach().clone() for slot in self._slots}
        self._set(self._common)
        try:
            yield
        finally:
            self._set(own)

    @torch.no_grad()
    def _set(self, weights: Mapping[str, torch.Tensor]) -> None:
        for slot in self._slots:
            slot.param.copy_(weights[slot.name])

    def _check(self, slot: Slot) -> None:
        guards.check_place(slot, self._device)
        if slot.name in self._large:
            guards.check_owner(slot, self.rates.groups)

    def interval_state(self) -> dict[str, Any]:
        """Returns the plain state of the interval."""
        return self.interval.state()

    def local_state(self) -> dict[str, Any]:
        """Returns a copy of all state of local steps, of types that torch.load accepts."""
        common = self._common if self.interval.taken else {}
        return {
            "interval": self.interval.state(),
            "checksum": self._checksum,
            "common": {name: one.clone() for name, one in common.items()},
            "outer": self._outer.state(),
        }

    def load_local_state(self, saved: dict[str, Any] | None) -> None:
        """Restores what `local_state` returned.

        An interval without common weights begins at the present ones.
        """
        self._common, self._checksum = {}, 0
        if saved is None:
            self.interval.taken = 0
            self._outer.load({})
            return
        self.interval.load(saved["interval"])
        self._checksum = saved.get("checksum", 0)
        params = {slot.name: slot.param for slot in self._slots}
        for name, one in saved.get("common", {}).items():
            wide = torch.promote_types(params[name].dtype, torch.float32)
            self._common[name] = one.to(params[name].device, wide, copy=True)
        self._outer.load(
            {name: one.to(params[name].device) for name, one in saved.get("outer", {}).items()}
        )


class _OuterSteps:
    """The steps of the outer optimizer, the same on all ranks."""

    def __init__(self, outer: Outer) -> None:
        self._options = outer
        self._momenta: dict[str, torch.Tensor] = {}

    def step(self, name: str, common: torch.Tensor, average: torch.Tensor) -> None:
        """Moves common weights by an average difference, in place; may change the average."""
        outer = self._options
        if outer.momentum:
            momentum = self._momenta.setdefault(name, torch.zeros_like(common))
            momentum.mul_(outer.momentum).add_(average)
            average = average.add(momentum, alpha=outer.momentum) if outer.nesterov else momentum
        common.sub_(average, alpha=outer.lr)

    def state(self) -> dict[str, torch.Tensor]:
        return {name: one.clone() for name, one in self._momenta.items()}

    def load(self, momenta: Mapping[str, torch.Tensor]) -> None:
        self._momenta = {name: one.clone() for name, one in momenta.items()}


def check_local_steps(settings: Settings) -> None:
    """Raises UnsupportedError for what local steps cannot do, before anything is sent."""
    if not settings.compression.is_local:
        return
    if in_elastic_job():
        raise UnsupportedError(
            "local_steps cannot be used in an elastic job: ranks that leave amid an interval would "
            "take their steps with them"
        )
    if not settings.reduction.averages:
        raise UnsupportedError(
            "local_steps needs averages: the sum of all ranks' differences would move the weights "
            "by as many times their steps"
        )


def meet(optimizer: torch.optim.Optimizer) -> None:
    """Averages the ranks' weights now, amid an interval of local steps. Collective.

    For the end of training, and before checkpoints that another number of ranks may load. After a
    meeting it does nothing.

    Args:
        optimizer: An optimizer with a compression that has local_steps.

    Raises:
        InvalidArgumentError: The compression has no local_steps.
        RanksDisagreeError: The ranks have not taken as many local steps.
        NonFiniteGradientError: A rank's weights are not finite; all ranks have the last common
            weights again.
        ExchangeFailedError: Another rank ended the exchange, or died.
    """
    exchange = _exchange_of(optimizer, "meet()")
    if exchange is not None:
        exchange.refuse_if_ended()
        exchange.meet()


@contextmanager
def common_weights(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Lends the model the last common weights, the same on all ranks, within the context.

    Without it, between two meetings, the model has this rank's own weights. Do not step within.

    Args:
        optimizer: An optimizer with a compression that has local_steps.

    Raises:
        InvalidArgumentError: The compression has no local_steps.
    """
    exchange = _exchange_of(optimizer, "common_weights()")
    if exchange is None:
        yield
        return
    with exchange.common_weights():
        yield


def report_loss(optimizer: torch.optim.Optimizer, loss: float | torch.Tensor) -> None:
    """Reports the loss of a local step, for AdaComm.

    Args:
        optimizer: An optimizer with a compression that has local_steps.
        loss: A number, or a tensor with one element, which is read at the next meeting.

    Raises:
        InvalidArgumentError: The compression has no local_steps.
    """
    exchange = _exchange_of(optimizer, "report_loss()")
    if exchange is not None:
        exchange.interval.note_loss(loss.detach() if isinstance(loss, torch.Tensor) else loss)


def local_steps(optimizer: torch.optim.Optimizer) -> int:
    """Returns the number of local steps from one meeting to the next; 1 without peers.

    With AdaComm it changes; lower the learning rate once it is 1, as its authors do.

    Args:
        optimizer: An optimizer with a compression that has local_steps.

    Raises:
        InvalidArgumentError: The compression has no local_steps.
    """
    exchange = _exchange_of(optimizer, "local_steps()")
    return 1 if exchange is None else exchange.interval.length


def _exchange_of(optimizer: torch.optim.Optimizer, caller: str) -> LocalStepsExchange | None:
    exchange = require_attachment(optimizer).exchange
    if exchange is not None and not isinstance(exchange, LocalStepsExchange):
        raise InvalidArgumentError(f"{caller} needs a compression with local_steps")
    return exchange
