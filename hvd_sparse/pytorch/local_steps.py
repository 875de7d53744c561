"""Ranks step by themselves, and meet now and then to average what they have done.

At a meeting, the exchange takes the differences between the last common weights and each rank's own
in place of gradients. They join the residuals, and what the exchange delivers moves the common
weights, with which all ranks go on: after each meeting, weights are bitwise equal on all ranks.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeGuard

import torch

from hvd_sparse import log
from hvd_sparse.compression import Compression
from hvd_sparse.compression.base import SparseCompression
from hvd_sparse.compression.buckets import Layer, fragments_of
from hvd_sparse.compression.local_steps import AVERAGED, LR_SCALE, MOST_LR_SCALE
from hvd_sparse.compression.parts import AUTO
from hvd_sparse.errors import NonFiniteGradientError
from hvd_sparse.exchange.interval import Interval, Report, warn_of_density
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.planning.over_time import PlanOverTime
from hvd_sparse.pytorch import moments
from hvd_sparse.pytorch.dense import DenseReducer
from hvd_sparse.pytorch.gradient_exchange import GradientExchange, Phase
from hvd_sparse.pytorch.host import Link
from hvd_sparse.pytorch.momentum import ADAMS
from hvd_sparse.pytorch.outer_steps import OuterSteps, copies_of, wide, widened
from hvd_sparse.pytorch.settings import Settings
from hvd_sparse.pytorch.shards import shard_of
from hvd_sparse.pytorch.slots import DeliveredSlot
from hvd_sparse.tuning.over_time import TunerOverTime
from hvd_sparse.tuning.tuner import Tuner


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

    In streaming meetings, it is the meeting of a fragment: `_take` starts it, and `_land` ends it,
    `delay` steps later.

    Attributes:
        interval: Counts the local steps until the next meeting.
        joining: Checks that ranks without data can follow; None unless there may be such ranks.
        before_move: Called before weights are moved outside of a step; None if nobody has copies.
    """

    slot_type = DifferenceSlot
    interval: Interval

    def __init__(self, optimizer: torch.optim.Optimizer, settings: Settings, link: Link) -> None:
        compression = settings.compression
        updated = {id(param) for group in optimizer.param_groups for param in group["params"]}
        named = [(name, param) for name, param in settings.named if id(param) in updated]
        differences = compression.of_differences()
        if _plans_over_time(differences):
            # The host's sums of small tensors would cost more than they save.
            all_tensors = replace(differences.layers, min_numel=0)
            differences = replace(differences, warmup=None, layers=all_tensors)
        own = replace(settings, compression=differences, named=named, grad_scaler=None)
        self._given, self._differences = compression, differences
        super().__init__(optimizer, own, link)
        self.joining: Joining | None = None
        self.before_move: Callable[[], None] | None = None
        is_rank0 = link.world.rank == 0
        planned = self._planned
        if is_rank0 and planned is None and compression.values != "binary":
            warn_of_density(compression.density)
        self._options = options = (
            compression.local_steps if planned is None else planned.local_steps
        )
        self._fragments = self._names_by_fragment()
        self.interval = Interval(options, fragments=len(self._fragments), warns=is_rank0)
        self.interval.is_watched = planned is not None
        self._outer = OuterSteps(options.outer)
        self._lr_scale = _scale_of(options.lr_scale, optimizer, size=link.world.size)
        self._common: dict[str, torch.Tensor] = {}  # float32 at least
        self._checksum = 0  # of the common weights, if no meeting has made them
        self._is_apart = False  # this rank's weights may differ from the common ones
        # The fragment in flight: its parameters, the steps since their differences were taken, the
        # weights at that time if there may be any, what was delivered, once it has arrived, the
        # error if no rank applies it, and the ranks' reports.
        self._in_flight: list[str] = []
        self._age = 0
        self._taken: dict[str, torch.Tensor] = {}
        self._averages: dict[str, torch.Tensor] = {}
        self._refused: NonFiniteGradientError | None = None
        self._awaited: Callable[[], list[list[float]]] | None = None  # the reports
        self._reports: list[list[float]] = []  # of all ranks
        self._lent: dict[str, torch.Tensor] = {}  # own weights, within common_weights()
        # Of narrow weights, what the next difference is taken from, if not from the common ones.
        self._start: dict[str, torch.Tensor] = {}

    def _names_by_fragment(self) -> list[set[str]]:
        """Returns the parameters of each fragment; a small one joins that of the one before it."""
        # By the sizes of whole parameters, since all shards of one meet together.
        whole = [(name, param) for name, param in reversed(self.named) if param.numel() > 0]
        takes = self._differences.takes
        large = [Layer(name, param.numel()) for name, param in whole if takes(param.shape)]
        groups = fragments_of(large, self._options.fragments)
        number_of = {layer.name: number for number, group in enumerate(groups) for layer in group}
        names: list[set[str]] = [set() for _ in range(max(1, len(groups)))]
        number = 0
        for name, _ in whole:
            number = number_of.get(name, number)
            names[number].add(name)
        return names

    def _new_tuner(self, compression: Compression) -> Tuner | TunerOverTime | None:
        if not self.layers or not _plans_over_time(compression):
            return super()._new_tuner(compression)
        given = replace(compression, layers=self._given.layers)
        replica = self.link.replica
        agreed = None if replica is None else replica.of_first_shard
        return self._measurer.tuner_over_time(self.layers, given, agreed=agreed)

    @property
    def _planned(self) -> PlanOverTime | None:
        return None if self.tuner is None else self.tuner.tuning.over_time

    def _follow_plan(self) -> None:
        """Follows the plan over time, if there is one, between two steps, on all ranks alike."""
        planned = self._planned
        if planned is not None:
            assert self.tuner is not None
            self.steps.replace_buckets(self.tuner.tuning.choices)
            self._options = planned.local_steps
            self._fragments = self._names_by_fragment()
            self.interval.follow(self._options, len(self._fragments))

    def replan(self) -> None:
        """Measures the network anew, and restarts tuning. Collective."""
        self.meet()
        super().replan()
        self._follow_plan()

    def _end_interval(self, reports: list[list[float]]) -> None:
        """Ends an interval, all of whose fragments have met; the next one may have another plan."""
        tuner = self.tuner
        if not isinstance(tuner, TunerOverTime) or not reports:
            return
        if tuner.end_interval([Report(*row) for row in reports]):
            self._follow_plan()
            self.interval.taken = 0

    def synchronize(self) -> None:
        """Does nothing: a local step takes this rank's own gradients.

        Raises:
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        self.check()

    def stepping(self, *, synchronized: bool) -> None:
        """Notes the common weights before the first local step after a meeting of all fragments."""
        del synchronized
        if not self._is_apart:
            self._note_common()

    @contextmanager
    def within_step(self) -> Iterator[None]:
        """Scales the learning rates within the context."""
        rates = [(group, group["lr"]) for group in self.optimizer().param_groups if "lr" in group]
        for group, rate in rates:
            group["lr"] = self._lr_scale * rate
        try:
            yield
        finally:
            for group, rate in rates:
                group["lr"] = rate

    def forget_gradients(self, reason: str) -> None:
        """Does nothing: gradients are this rank's own, and differences in flight are not theirs."""

    def refuse_if_busy(self, reason: str) -> None:
        """Waits for a fragment in flight, on this rank alone if need be."""
        self._wait()

    def settle(self, *, quietly: bool = False) -> None:
        """Waits for a fragment in flight, which a later step or nobody applies.

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
            param = slot.weights
            common = self._common.get(slot.name)
            if common is not None and torch.equal(common.to(param.dtype), param):
                continue
            # The first interval, or the user has loaded weights.
            common = self._common[slot.name] = param.to(wide(param.dtype), copy=True)
            self._checksum = zlib.crc32(common.cpu().numpy().data, self._checksum)

    def stepped(self) -> None:
        """Counts a local step, which may end in a meeting. See `meet`."""
        if self.joining is not None:
            with self.ending():
                self.joining.check_step()
        self._count_step()

    def follow(self) -> None:
        """Counts a local step of the other ranks, in which this one, out of data, did nothing."""
        self.stepping(synchronized=True)
        try:
            self._count_step()
        except NonFiniteGradientError as error:  # those who took the step may go on after it
            with suppress(Exception):  # from the program's own log handler
                log.logger.warning("at a meeting: %s", error)

    def meet_now(self) -> None:
        """Meets early, where the user asks for it; see `meet`."""
        if self.joining is not None:
            with self.ending():
                self.joining.check_meeting()
        if self.before_move is not None:
            self.before_move()
        self.meet()

    def meet(self) -> None:
        """Averages the ranks' differences, and moves all ranks to the new common weights.

        Raises:
            RanksDisagreeError: The ranks have not taken as many local steps.
            NonFiniteGradientError: A difference is not finite on some rank. No rank applies it; the
                residuals keep the finite differences, and weights that are not finite are the last
                common ones again.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        refused = self._land()
        reports = self._checked(self._report())
        if self._is_apart:
            self._take(None)
            refused = self._land() or refused
            if self._options.moments == AVERAGED and refused is None:
                params = (slot.param for slot in self.slots)
                self.average(moments.moments_of(self.optimizer(), params), "moments")
            is_whole = self.interval.taken >= self.interval.length
            self.interval.meet(reports)
            if is_whole:
                self._end_interval(reports)
        if refused is not None:
            raise refused

    def _count_step(self) -> None:
        self._is_apart = True
        self._age += 1
        number = self.interval.step()
        if isinstance(self.tuner, TunerOverTime) and self.tuner.times_from(self.interval.taken):
            self.interval.begin_timing()
        if self._options.streams:
            self._stream(number)
        elif number is not None:
            self.meet()

    def _stream(self, number: int | None) -> None:
        """Ends the meeting of a fragment, or begins that of another one, if its step has come.

        Args:
            number: The fragment that meets after this step, if one does.

        Raises:
            NonFiniteGradientError: As `meet`, for the fragment whose meeting ends.
        """
        refused = None
        if self._age >= self._options.delay or number is not None:
            refused = self._land()
        if number is not None and self.interval.taken > 0:  # and no plan has begun an interval
            is_last = number + 1 == len(self._fragments)
            if is_last:
                self._awaited = self._report()
            self._take(self._fragments[number])
            if is_last:
                self.interval.meet(())
            if not self._options.delay:
                refused = self._land() or refused
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
    def _take(self, names: set[str] | None) -> None:
        """Starts the exchange of this rank's differences of some parameters; None: of all."""
        self.fragment = names
        self._age = 0
        stays = names is not None and self._options.delay > 0
        slots = [slot for slot in reversed(self.slots) if names is None or slot.name in names]
        if not slots:
            return
        params = [slot.weights for slot in slots]
        starts = [self._start_of(slot.name, slot.param.dtype) for slot in slots]
        # One call for all tensors: with many small ones, calls are what a meeting costs.
        differences = torch._foreach_sub(starts, params)
        for slot, difference in zip(slots, differences, strict=True):
            assert isinstance(slot, DifferenceSlot)
            slot.delivered = difference
        if self.interval.is_watched:
            norms = [norm.float() for norm in torch._foreach_norm(differences)]
            self.interval.note_differences(torch.stack(norms).norm())
        self._in_flight = [slot.name for slot in slots]
        if stays:
            copies = [torch.empty_like(param) for param in params]
            torch._foreach_copy_(copies, params)
            self._taken = dict(zip(self._in_flight, copies, strict=True))
        with self.ending(), self.clock.arrival(slots[0].name):
            self.launch()
        if stays:  # others still need this rank's part, even if this optimizer is dropped now
            self.core.before_close = partial(self.settle, quietly=True)

    def _start_of(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Returns the weights from which the difference of a parameter of a type is taken."""
        start = self._start.pop(name, None)
        if start is None:
            common = self._common[name]
            start = common if common.dtype == dtype else common.to(dtype).to(common.dtype)
        return start

    def _wait(self) -> None:
        """Waits for differences in flight; other ranks need not do so at the same time."""
        if self.phase is not Phase.GATHERING:
            return
        self.core.before_close = None
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            self._reports = self._checked(awaited)
        try:
            self.complete_alone()
        except NonFiniteGradientError as error:
            self._refused = error
            return
        self._averages = {slot.name: slot.gradient() for slot in self.slots if slot.launched}
        self.release()

    @torch.no_grad()
    def _land(self) -> NonFiniteGradientError | None:
        """Waits for differences in flight, if any, and moves the weights by them. Collective.

        Returns:
            The error of a meeting that no rank applies.
        """
        if not self._in_flight:
            return None
        begin = time.perf_counter()
        self._wait()
        self._note_wait(time.perf_counter() - begin)
        self.end_step()
        self.release()
        self._outer.step(self._common, self._averages)
        self._move()
        if not self._averages:
            self._restore_finite()
        if self._age == 0 and len(self._in_flight) == len(self.slots):
            self._is_apart = False
        self._in_flight, self._taken, self._averages = [], {}, {}
        refused, self._refused = self._refused, None
        if self._options.streams and self._age == self.interval.taken:  # it was the last fragment
            self._end_interval(self._reports)
        return refused

    def _note_wait(self, seconds: float) -> None:
        last = self.stats.last
        exchanges = () if last is None else last.buckets
        self.interval.note_wait(seconds, exchange=sum(one.exchange_seconds for one in exchanges))

    def _move(self) -> None:
        """Moves what is in flight to its common weights, and adds what this rank has done since."""
        params = [shard_of(self.parameters[name]).detach() for name in self._in_flight]
        common = [self._common[name] for name in self._in_flight]
        if not self._taken:
            torch._foreach_copy_(params, common)
            return
        taken = [self._taken[name] for name in self._in_flight]
        since = torch._foreach_sub(widened(params), widened(taken))
        torch._foreach_copy_(params, torch._foreach_add(common, since))
        for name, param, one, own in zip(self._in_flight, params, common, since, strict=True):
            if param.dtype != one.dtype:
                self._start[name] = param.to(one.dtype) - own

    def _restore_finite(self) -> None:
        """Replaces weights that are not finite by the common ones, after a refused meeting."""
        for slot in self.slots:
            param = slot.weights
            param.copy_(torch.where(param.isfinite(), param, self._common[slot.name]))

    def _report(self) -> Callable[[], list[list[float]]]:
        """Sends this rank's report; returns a function that waits for those of all ranks."""
        rate = float(self.optimizer().param_groups[0].get("lr", 0.0))
        report = self.interval.report(
            rate=rate, weights=self._checksum, grows=self.steps.residual_grows
        )
        self._checksum = 0
        with self.ending():
            if self._options.delay:  # no step waits for this message
                return self.link.messages.gather(report, what="meeting")
            reports = self.core.gather(report, what="a meeting of local steps")
        return lambda: reports

    def _checked(self, awaited: Callable[[], list[list[float]]]) -> list[list[float]]:
        """Waits for the reports of all ranks, which have taken as many steps."""
        with self.ending():
            reports = awaited()
            self.interval.check(reports)
            replica = self.link.replica
            return reports if replica is None else replica.of_all_shards(reports)

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Lends the parameters the last common weights within the context."""
        if not self._is_apart:
            yield
            return
        self._lent = {slot.name: slot.weights.clone() for slot in self.slots}
        self._set(self._common)
        try:
            yield
        finally:
            self._set(self._lent)
            self._lent = {}

    def own_weights(self) -> dict[str, torch.Tensor]:
        """Returns this rank's own weights, also while the parameters have the common ones."""
        return self._lent or {slot.name: slot.weights for slot in self.slots}

    @torch.no_grad()
    def _set(self, weights: Mapping[str, torch.Tensor]) -> None:
        if self.before_move is not None:
            self.before_move()
        for slot in self.slots:
            slot.weights.copy_(weights[slot.name])

    def local_state(self) -> dict[str, Any]:
        """Returns a copy of all state of local steps, of types that torch.load accepts."""
        self._wait()
        plan = self.tuner.plan_state() if isinstance(self.tuner, TunerOverTime) else None
        return {
            "interval": self.interval.state(),
            "plan": plan,
            "amid": self._is_apart,
            "checksum": self._checksum,
            "common": copies_of(self._common),
            "start": copies_of(self._start),
            "in_flight": list(self._in_flight),
            "age": self._age,
            "reports": self._reports,
            "taken": copies_of(self._taken),
            "averages": copies_of(self._averages),
            "outer": self._outer.state(),
        }

    def load_local_state(self, saved: dict[str, Any] | None) -> None:
        """Restores what `local_state` returned.

        An interval without common weights begins at the present ones.
        """
        saved = {"interval": {**self.interval.state(), "taken": 0}} if saved is None else saved
        if "in_flight" not in saved:  # older files have the whole model in flight, or nothing
            start = saved.get("start", {})
            saved = {**saved, "in_flight": list(start), "taken": start, "start": {}}
        self._refused = self._awaited = None
        self._reports = saved.get("reports", [])
        self._committed = None  # since other state is loaded, on all ranks
        if isinstance(self.tuner, TunerOverTime):
            self.tuner.load_plan(saved.get("plan"))
            self._follow_plan()
        self.interval.load(saved["interval"])
        self._checksum = saved.get("checksum", 0)
        self._is_apart = saved.get("amid", False)
        self._in_flight, self._age = list(saved["in_flight"]), saved.get("age", 0)
        params = {slot.name: slot.param for slot in self.slots}

        def of(part: str) -> dict[str, torch.Tensor]:
            return {
                name: one.to(params[name].device, copy=True)
                for name, one in saved.get(part, {}).items()
            }

        self._common, self._start = of("common"), of("start")
        self._taken, self._averages = of("taken"), of("averages")
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
            own = momenta.get(slot.name, torch.zeros(slot.weights.shape)).cpu()
            name = f"{self.link.prefix}.outer.{slot.name}"
            summed = self.link.messages.wait_for(self.link.host.add_up(own.double().numpy(), name))
            adopted[slot.name] = torch.from_numpy(summed).to(wide(slot.param.dtype))
        return adopted


def _plans_over_time(compression: Compression) -> TypeGuard[SparseCompression]:
    """Returns true if measured times choose the number of local steps, and what they send."""
    chooses = compression.local_steps.every == AUTO
    return chooses and isinstance(compression, SparseCompression) and bool(compression.adaptive)


def _scale_of(given: float | str, optimizer: torch.optim.Optimizer, *, size: int) -> float:
    """Returns the factor of learning rates in local steps; see `LocalSteps.lr_scale`."""
    if isinstance(given, str):
        scale = min(LR_SCALE * math.sqrt(size), MOST_LR_SCALE)
        return scale if size > 1 and isinstance(optimizer, ADAMS) else 1.0
    return given
