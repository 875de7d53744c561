"""Ranks step by themselves, and meet now and then to average what they have done.

At a meeting, the exchange takes the differences between the last common weights and each rank's own
in place of gradients. They join the residuals, and what the exchange delivers moves the common
weights, with which all ranks go on: after each meeting, weights are bitwise equal on all ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch

from hvd_sparse import log
from hvd_sparse.compression.local_steps import AVERAGED, Outer
from hvd_sparse.errors import NonFiniteGradientError
from hvd_sparse.exchange.interval import Interval, warn_of_density
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.pytorch import moments
from hvd_sparse.pytorch.dense import DenseReducer
from hvd_sparse.pytorch.gradient_exchange import GradientExchange, Phase
from hvd_sparse.pytorch.host import Link
from hvd_sparse.pytorch.settings import Settings
from hvd_sparse.pytorch.slots import DeliveredSlot


class DifferenceSlot(DeliveredSlot):
    """A slot to which the difference of a parameter is delivered, once at each meeting."""

    def release(self, passes: int) -> None:
        """Prepares for the next meeting."""
        del passes
        super().release(1)
        self.delivered = None


class Joining(Protocol):
    """Ranks that run out of data, while others go on: DDP's join()."""

    def check_step(self) -> None:
        """Raises UnsupportedError if a rank without data cannot count the step just taken."""

    def check_meeting(self) -> None:
        """Raises UnsupportedError if a rank without data would not come to an early meeting."""


class LocalSteps(GradientExchange):
    """Local steps: each rank takes its own, and a step of the exchange is a meeting.

    Attributes:
        interval: Counts the local steps until the next meeting.
        joining: Checks that ranks without data can follow; None unless there may be such ranks.
    """

    slot_type = DifferenceSlot
    interval: Interval

    def __init__(self, optimizer: torch.optim.Optimizer, settings: Settings, link: Link) -> None:
        compression = settings.compression
        updated = {id(param) for group in optimizer.param_groups for param in group["params"]}
        named = [(name, param) for name, param in settings.named if id(param) in updated]
        differences = compression.of_differences()
        own = replace(settings, compression=differences, named=named, grad_scaler=None)
        super().__init__(optimizer, own, link)
        self.joining: Joining | None = None
        is_rank0 = link.world.rank == 0
        if is_rank0 and compression.values != "binary":
            warn_of_density(compression.density)
        self.interval = Interval(compression.local_steps, warns=is_rank0)
        self._outer = _OuterSteps(compression.local_steps.outer)
        self._overlaps = compression.local_steps.overlap
        self._common: dict[str, torch.Tensor] = {}  # float32 at least
        self._checksum = 0  # of the common weights, if no meeting has made them
        # While a meeting overlaps an interval, the weights at which this began, and what the
        # meeting has delivered, once it has ended.
        self._start: dict[str, torch.Tensor] = {}
        self._averages: dict[str, torch.Tensor] = {}
        self._refused: NonFiniteGradientError | None = None  # raised at the next meeting
        self._averages_moments = compression.local_steps.moments == AVERAGED

    def synchronize(self) -> None:
        """Does nothing: a local step takes this rank's own gradients.

        Raises:
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        self.core.check()

    def stepping(self, *, synchronized: bool) -> None:
        """Notes the common weights before the first local step of an interval."""
        del synchronized
        if self.interval.taken == 0 and not self._start:
            self._note_common()

    def forget_gradients(self, reason: str) -> None:
        """Does nothing: gradients are this rank's own, and differences in flight are not theirs."""

    def refuse_if_busy(self, reason: str) -> None:
        """Waits for a meeting that overlaps local steps, on this rank alone if need be."""
        self._wait()

    def settle(self, *, quietly: bool = False) -> None:
        """Waits for a meeting in flight, which the next one or nobody applies.

        Args:
            quietly: True to raise no error, which has ended the exchange.
        """
        try:
            self._wait()
        except Exception:
            if not quietly:
                raise

    @torch.no_grad()
    def _note_common(self) -> None:
        for slot in self.slots:
            param = slot.param.detach()
            common = self._common.get(slot.name)
            if common is not None and torch.equal(common.to(param.dtype), param):
                continue
            # The first interval, or the user has loaded weights.
            common = self._common[slot.name] = param.to(_wide(param.dtype), copy=True)
            self._checksum = zlib.crc32(common.cpu().numpy().data, self._checksum)

    def stepped(self) -> None:
        """Counts a local step; the last one of an interval ends in a meeting. See `meet`."""
        if self.joining is not None:
            with self.ending():
                self.joining.check_step()
        if self.interval.step():
            self.meet(overlaps=self._overlaps)

    def follow(self) -> None:
        """Counts a local step of the other ranks, in which this one, out of data, did nothing."""
        self.stepping(synchronized=True)
        try:
            if self.interval.step():
                self.meet(overlaps=self._overlaps)
        except NonFiniteGradientError as error:  # those who took the step may go on after it
            with suppress(Exception):  # from the program's own log handler
                log.logger.warning("at a meeting: %s", error)

    def meet_now(self) -> None:
        """Meets early, where the user asks for it; see `meet`."""
        if self.joining is not None:
            with self.ending():
                self.joining.check_meeting()
        self.meet()

    def meet(self, *, overlaps: bool = False) -> None:
        """Averages the ranks' differences, and moves all ranks to the new common weights.

        Args:
            overlaps: True to return while the differences are in flight. The next meeting moves the
                common weights by what is delivered; until then, each rank's own weights are the
                common ones less its difference in flight.

        Raises:
            RanksDisagreeError: The ranks have not taken as many local steps.
            NonFiniteGradientError: A difference is not finite on some rank. No rank applies it; the
                residuals keep the finite differences, and weights that are not finite are the last
                common ones again.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        self._wait()
        reports = self._reports()
        if self.interval.taken == 0 and not self._start:
            return
        refused = self._finish()
        if self.interval.taken:
            self._send(overlaps=overlaps)
        if not overlaps:
            refused = self._finish() or refused
            self._start = {}
            self._set(self._common)
            if self._averages_moments and refused is None:
                params = (slot.param for slot in self.slots)
                self.average(moments.moments_of(self.optimizer(), params), "moments")
        self._checksum = 0
        self.interval.meet(reports)
        if refused is not None:
            raise refused

    def average(self, tensors: list[torch.Tensor], what: str) -> None:
        """Replaces tensors by their averages over the ranks; see `moments.average`. Collective."""
        with self.ending():
            moments.average(tensors, what, self.link)

    def sums(self, reduction: Reduction) -> DenseReducer:
        """Returns sums by the host of gradients that these steps leave to another optimizer."""
        link = replace(self.link, prefix=f"{self.link.prefix}.others")
        return DenseReducer(link, reduction)

    @torch.no_grad()
    def _send(self, *, overlaps: bool) -> None:
        """Starts the exchange of this rank's differences."""
        for slot in reversed(self.slots):
            assert isinstance(slot, DifferenceSlot)
            common, param = self._common[slot.name], slot.param.detach()
            start = self._start.get(slot.name, common).to(param.dtype).to(common.dtype)
            slot.delivered = difference = start - param
            if overlaps:
                own = torch.where(difference.isfinite(), difference, 0)
                param.copy_(common - own)
                self._start[slot.name] = param.clone()
            self.arrived(slot)
        if overlaps:  # this rank may wait for them alone, and all must be under way then
            with self.ending():
                self.launch()
            # Others still need this rank's part, even if this optimizer is dropped now.
            self.core.before_close = partial(self.settle, quietly=True)

    def _wait(self) -> None:
        """Waits for differences in flight; other ranks need not do so at the same time."""
        if self.phase is not Phase.GATHERING:
            return
        self.core.before_close = None
        try:
            self.complete_alone()
        except NonFiniteGradientError as error:
            self._refused = error
            return
        self._averages = {slot.name: slot.gradient() for slot in self.slots}
        self.release()

    @torch.no_grad()
    def _finish(self) -> NonFiniteGradientError | None:
        """Waits for differences in flight, and moves the common weights. Collective.

        Returns:
            The error of a meeting that no rank applies.
        """
        self._wait()
        self.end_step()
        self.release()
        refused, self._refused = self._refused, None
        for name, average in self._averages.items():
            self._outer.step(name, self._common[name], average)
        self._averages = {}
        return refused

    def _reports(self) -> list[list[float]]:
        """Returns the reports of all ranks, which have taken as many local steps. Collective."""
        rate = float(self.optimizer().param_groups[0].get("lr", 0.0))
        report = self.interval.report(rate=rate, weights=self._checksum)

        with self.ending():
            reports = self.core.gather(report, what="a meeting of local steps")
            self.interval.check(reports)
        return reports

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Lends the parameters the last common weights within the context."""
        if self.interval.taken == 0 and not self._start:
            yield
            return
        own = {slot.name: slot.param.detach().clone() for slot in self.slots}
        self._set(self._common)
        try:
            yield
        finally:
            self._set(own)

    @torch.no_grad()
    def _set(self, weights: Mapping[str, torch.Tensor]) -> None:
        for slot in self.slots:
            slot.param.copy_(weights[slot.name])

    def local_state(self) -> dict[str, Any]:
        """Returns a copy of all state of local steps, of types that torch.load accepts."""
        self._wait()
        return {
            "interval": self.interval.state(),
            "amid": bool(self.interval.taken or self._start),
            "checksum": self._checksum,
            "common": _copies(self._common),
            "start": _copies(self._start),
            "averages": _copies(self._averages),
            "outer": self._outer.state(),
        }

    def load_local_state(self, saved: dict[str, Any] | None) -> None:
        """Restores what `local_state` returned.

        An interval without common weights begins at the present ones.
        """
        saved = {"interval": {**self.interval.state(), "taken": 0}} if saved is None else saved
        self._refused = None
        self._committed = None  # since other state is loaded, on all ranks
        self.interval.load(saved["interval"])
        self._checksum = saved.get("checksum", 0)
        params = {slot.name: slot.param for slot in self.slots}

        def of(part: str) -> dict[str, torch.Tensor]:
            return {
                name: one.to(params[name].device, copy=True)
                for name, one in saved.get(part, {}).items()
            }

        self._common, self._start = of("common"), of("start")
        self._averages = of("averages")
        self._outer.load(of("outer"))

    def adopt_local_state(self, saved: dict[str, Any] | None, source: int) -> None:
        """Begins an interval with one rank's number of local steps and outer momentum."""
        world = self.world
        own = saved if world.rank == source and saved is not None else {}
        interval = world.allgather_object(own.get("interval"))[source] or self.interval.state()
        momenta = self._of_source(own.get("outer", {}))
        self.load_local_state({"interval": {**interval, "taken": 0}, "outer": momenta})

    def _of_source(self, momenta: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the outer momenta of the one rank that passes any. Collective."""
        if not self._outer.has_momentum:
            return {}
        adopted = {}
        for slot in self.slots:
            own = momenta.get(slot.name, torch.zeros(slot.param.shape)).cpu()
            name = f"{self.link.prefix}.outer.{slot.name}"
            summed = self.link.messages.wait_for(self.link.host.add_up(own.double().numpy(), name))
            adopted[slot.name] = torch.from_numpy(summed).to(_wide(slot.param.dtype))
        return adopted


class _OuterSteps:
    """The steps of the outer optimizer, the same on all ranks."""

    def __init__(self, outer: Outer) -> None:
        self._options = outer
        self._momenta: dict[str, torch.Tensor] = {}
        self.has_momentum = outer.momentum > 0

    def step(self, name: str, common: torch.Tensor, average: torch.Tensor) -> None:
        """Moves common weights by an average difference, in place; may change the average."""
        outer = self._options
        if outer.momentum:
            momentum = self._momenta.setdefault(name, torch.zeros_like(common))
            momentum.mul_(outer.momentum).add_(average)
            average = average.add(momentum, alpha=outer.momentum) if outer.nesterov else momentum
        common.sub_(average, alpha=outer.lr)

    def state(self) -> dict[str, torch.Tensor]:
        return _copies(self._momenta)

    def load(self, momenta: dict[str, torch.Tensor]) -> None:
        self._momenta = momenta


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the type of common weights and outer momenta of parameters of a type."""
    return torch.promote_types(dtype, torch.float32)


def _copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: one.clone() for name, one in tensors.items()}
