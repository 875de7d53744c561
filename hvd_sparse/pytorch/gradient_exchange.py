"""Averages a model's gradients over all ranks while backward still runs.

In a step, gradients arrive one by one, those that are missing are launched at its end, all are
waited for, and the step is committed. A subclass says when an optimizer's step goes through these
phases: plain steps (plain_steps.py), local steps (local_steps.py), steps that do not wait
(forward.py), those of a DistributedDataParallel (hvd_sparse/ddp/bucket_steps.py), and of a sharded
model (hvd_sparse/fsdp/sharded_steps.py).
"""

from __future__ import annotations

import enum
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import ClassVar

import torch
from torch.utils.hooks import RemovableHandle

from hvd_sparse import log
from hvd_sparse.compression import Compression
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.errors import ExchangeFailedError, HvdSparseError, NonFiniteGradientError
from hvd_sparse.places.step_clock import Reading, StepClock
from hvd_sparse.planning import plan
from hvd_sparse.pytorch import guards, hooks
from hvd_sparse.pytorch.devices import common_device
from hvd_sparse.pytorch.host import Link
from hvd_sparse.pytorch.learning_rates import LearningRates
from hvd_sparse.pytorch.momentum import Momentum
from hvd_sparse.pytorch.parameters import NamedParameters, weakly
from hvd_sparse.pytorch.places import measurer_of
from hvd_sparse.pytorch.settings import Settings
from hvd_sparse.pytorch.shards import shard_of
from hvd_sparse.pytorch.slots import Slot
from hvd_sparse.pytorch.steps import Steps
from hvd_sparse.state.saved_exchange import conditions_of
from hvd_sparse.stats.step_stats import Stats, StepStats
from hvd_sparse.tuning.over_time import TunerOverTime
from hvd_sparse.tuning.tuner import Tuner


class Phase(enum.Enum):
    """The state of a step's gradients."""

    IDLE = "no gradient has arrived in this step"
    GATHERING = "gradients arrive"
    EXCHANGED = "the gradients are averages; the optimizer has not stepped yet"
    APPLYING = "the optimizer has stepped, and applies gradients as they arrive"
    APPLIED = "the optimizer has stepped, and has applied all gradients as they arrived"


class GradientExchange(ABC):
    """The exchange of one optimizer's gradients.

    A gradient that backward has completed goes to the core, which starts buckets in one order on
    every rank; or to the host if it is small, faster dense, or not for this optimizer.

    Args:
        optimizer: The optimizer, which this does not keep alive.
        settings: The user's settings.
        link: The connection between the ranks.

    Attributes:
        any_ended_early: True if an error has ended an exchange of this process: the host may then
            wait for ever for the rest of its dense operations.
        slot_type: Class of the slots: where gradients lie.
        link: The connection between the ranks.
        world: The ranks.
        core: The core's exchange between the ranks.
        named: The parameters that it was given, by name; those without elements here among them.
        parameters: The parameters that are exchanged, by name.
        slots: Their gradients, in order of registration.
        layers: Layers that can be sparse, in the order in which their gradients are expected.
        phase: The phase of the step.
        steps: The steps, as the core runs them.
        clock: Times the steps that the tuner asks for.
        optimizer: Returns the optimizer; raises HvdSparseError once that is gone.
        tuner: Decides on the plan, if the compression is adaptive.
        rates: The learning rates that the residuals follow.
        momentum: The momentum that ranks apply before error feedback.
        stats: Cost of the steps.
        averages: True if results are averages over the ranks, and not sums.
        passes: Backward passes per step.
        conditions: Those under which plan and thresholds are found, for checkpoints.
        mark: The user's mark of the current step; see `mark_step`.
        fragment: The parameters that take part in the next step; None: all of them.
    """

    any_ended_early: ClassVar[bool] = False
    slot_type: ClassVar[type[Slot]] = Slot

    def __init__(self, optimizer: torch.optim.Optimizer, settings: Settings, link: Link) -> None:
        compression, named = settings.compression, settings.named
        world, core = link.world, link.core
        self.link, self.world, self.core = link, world, core
        self.averages = settings.reduction.averages
        self.passes = settings.backward_passes_per_step
        self.mark = ""
        self.fragment: Container[str] | None = None
        self.phase = Phase.IDLE
        # Of a step that was committed, and is yet to be ended by all ranks together: its times, if
        # they are known, and true if the quality of selection may be measured.
        self._committed: tuple[Reading | None, bool] | None = None
        self.optimizer = weakly(optimizer)
        self.rates = LearningRates(optimizer, compression)
        self.momentum = Momentum(optimizer, settings, size=world.size)
        self.stats = Stats()
        self.named = named
        device = common_device(named)
        optimized = {id(param) for group in optimizer.param_groups for param in group["params"]}
        self.slots = [
            self.slot_type(name, param, self.passes, optimized=id(param) in optimized)
            for name, param in named
            if shard_of(param).numel() > 0
        ]
        self.parameters = {slot.name: slot.param for slot in self.slots}
        self.layers = tuple(
            Layer(slot.name, slot.whole)
            for slot in reversed(self.slots)
            if slot.optimized and compression.takes(slot.weights.shape)
        )
        self.conditions = conditions_of(compression, local_size=core.local_size, device=str(device))
        large = {layer.name for layer in self.layers}
        self._guard = guards.Guard(settings, self.rates.groups, large)
        self._settings = settings
        self.steps = self._new_steps()
        self._measurer = measurer_of(link, device)
        self.clock = StepClock(self.layers, self._measurer.place.clock)
        self.clock.running = False  # until the tuner asks for times
        self.tuner: Tuner | TunerOverTime | None = None
        if world.size > 1:
            self.tuner = self._new_tuner(compression)
            if self.tuner is not None:
                self.steps.replace_buckets(self.tuner.tuning.choices)
        self._hooks: list[RemovableHandle] = [
            slot.param.register_post_accumulate_grad_hook(hooks.calling(self.arrived, slot))  # type: ignore[no-untyped-call]
            for slot in self.slots
            if slot.at_parameter and slot.param.requires_grad  # launch() hands over the others
        ]
        # The core writes to memory that is freed with this object, so it has to end first.
        weakref.finalize(self, link.close).atexit = False
        # A parameter and its hook keep each other alive, in a cycle that no collector sees.
        weakref.finalize(self, hooks.remove, self._hooks).atexit = False

    def _new_steps(self) -> Steps:
        """Returns steps that have not begun, for the present supports."""
        numel_of = {slot.name: slot.numel for slot in self.slots}
        layers = [Layer(one.name, numel_of[one.name]) for one in self.layers if numel_of[one.name]]
        compression = self._settings.compression
        sent = plan.sent_layers(layers, compression)
        steps = Steps(
            sent if self.world.size > 1 else (),  # a single rank has no residuals
            list(reversed(self.slots)),
            self._settings,
            self.link,
            rates=self.rates,
            momentum=self.momentum,
            device=common_device(self.named),
        )
        if self.world.size > 1 and not compression.adaptive:
            steps.replace_buckets(plan.fixed_choices(sent, compression))
        return steps

    def restrict(self, supports: Mapping[str, torch.Tensor]) -> None:
        """Replaces the supports of all slots, between two steps, on all ranks alike.

        Residuals and velocities move by position: those outside a new support are dropped.

        Args:
            supports: The new supports, by parameter; one that is missing is exchanged whole. The
                compression is not adaptive.
        """
        self.end_step()
        self.release()
        former = self.steps
        residuals, velocities, count = former.residuals(), former.velocities(), former.count
        former.replace_buckets(())
        for slot in self.slots:
            slot.restrict(supports.get(slot.name))
        self.steps = self._new_steps()
        self.steps.remembers = former.remembers
        self.steps.load(residuals, {}, velocities, step=count)

    def _new_tuner(self, compression: Compression) -> Tuner | TunerOverTime | None:
        """Returns a tuner for the compression; None if nothing is tuned. Collective."""
        return self._measurer.tuner(self.layers, compression, self.link.messages)

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until every gradient is the average; a no-op until gradients arrive again."""

    def lend_averages(self) -> None:
        """Called when the program asks for averages, which it may change or throw away."""
        self.rates.clipping_seen()

    @abstractmethod
    def stepping(self, *, synchronized: bool) -> None:
        """Called before the optimizer's step.

        Args:
            synchronized: True if the user says that `synchronize` was called.
        """

    def within_step(self) -> AbstractContextManager[None]:
        """Returns the context in which the optimizer moves the weights."""
        return self.momentum.hidden()

    def update(self) -> None:
        """Called after `stepping`, before step() without a closure moves the weights."""
        self.synchronize()

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

    def undo_unfinished(self) -> None:
        """Undoes a step that the optimizer has not taken; ends the exchange if it is under way."""
        self.settle(quietly=True)

    def arrived(self, slot: Slot) -> None:
        """Accepts a gradient to which backward has just added."""
        try:
            guards.check_not_capturing(self._guard.device)
            if self.phase is not Phase.GATHERING:
                self._begin()
            self._guard.admit(slot)
            slot.passes_left -= 1
            if slot.passes_left == 0:
                with torch.no_grad(), self.clock.arrival(slot.name):
                    self.steps.arrived(slot)
        except BaseException as error:
            raise self.end(error)  # noqa: B904

    def _begin(self) -> None:
        if self.phase is Phase.EXCHANGED:  # the averages belong to the program
            self.release()
        hooks.surround(self.optimizer())  # step() may have been replaced since
        self.steps.begin(self.fragment)
        if self.core.checks:
            self.core.note(guards.describe_step(self.optimizer(), self.mark))
        self.phase = Phase.GATHERING
        if self.core.timeline is not None:
            self.core.timeline.step_begins(self.steps.count)

    def complete(self) -> None:
        """Ends a step, in which perhaps not one gradient has arrived: all gradients are averages.

        Raises:
            NonFiniteGradientError: On every rank, if a gradient is not finite on one. All gradients
                are then zero, and the residuals keep the finite entries. With loss scaling, there
                is no error: all gradients are infinite, and the residuals what they were before.
            GradientInFlightError: A gradient was changed after backward. The exchange has ended.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        self.complete_alone()
        self.end_step()

    def complete_alone(self) -> None:
        """Like `complete` without `end_step`, so that other ranks need not call it now."""
        try:
            with torch.no_grad(), self.ending(unless=NonFiniteGradientError):
                self.launch()
                self.wait(since=time.perf_counter())
                self._commit()
        except NonFiniteGradientError:
            for slot in self.slots:
                slot.fill_result(0.0)
            self.release()
            raise

    def check(self) -> None:
        """Raises the error that has ended the exchange, if any, after it has ended all shards'."""
        with self.ending():
            self.core.check()

    def launch(self) -> None:
        """Hands over the gradients that have not arrived; no others will arrive in this step."""
        self.core.check()
        guards.check_not_capturing(self._guard.device)
        if self.phase is not Phase.GATHERING:  # not one gradient has arrived
            self._begin()
        if self.core.timeline is not None:
            self.core.timeline.synchronize_begins(self.steps.count)
        self._guard.check_step(self.optimizer(), self.slots)
        self.steps.launch_missing()

    def wait(self, *, since: float) -> None:
        """Waits as `Steps.wait` does, since a `time.perf_counter`, and notes the step's cost."""
        buckets = self.steps.wait()
        last = StepStats(
            step=self.steps.count,
            buckets=buckets,
            dense_bytes=self.steps.dense.bytes,
            wait_seconds=time.perf_counter() - since,
            transport=self.core.transport,
        )
        self.stats = Stats(last=last, total=self.stats.total.plus(last))
        if self.core.timeline is not None:
            self.core.timeline.step_ends(last)

    def _commit(self) -> None:
        reading, applied = self.clock.end_step(), True
        try:
            self.steps.commit()
        except NonFiniteGradientError:
            if not self.steps.local.skips_steps:
                raise
            if self.steps.can_undo:  # the scaler throws this step away
                self.steps.undo(self.parameters)
            applied = False
        for slot in (slot for slot in self.slots if slot.launched):
            if applied:
                slot.write_back()
            else:
                slot.fill_result(float("inf"))  # so that the scaler skips the step
        self._committed = reading, applied

    def end_step(self) -> None:
        """Ends a step that this rank has committed, if there is one. Collective.

        The step counts, so an error is not raised here: it ends the exchange and is logged, and the
        next step raises it.
        """
        if self._committed is None:
            return
        (reading, measures), self._committed = self._committed, None
        self.phase = Phase.EXCHANGED
        try:
            self._after_commit(reading, measures=measures)
        except Exception as error:
            unexpected = not isinstance(error, (self.link.host.failure, ExchangeFailedError))
            cause = self.end(error)
            with suppress(Exception):  # from the program's own log handler
                log.logger.warning(
                    *("after a step that counts: %s: %s", type(cause).__name__, cause),
                    exc_info=unexpected,
                )

    def _after_commit(self, reading: Reading | None, *, measures: bool) -> None:
        """Measures the step, and may adopt another order or plan for the next ones."""
        assert self.stats.last is not None
        last = self.stats.last
        quality = self.steps.measured(last.step) if measures else None
        if quality is not None:
            self.stats = replace(self.stats, last=replace(last, quality=quality))
        self.steps.end_step()
        if self.tuner is not None:
            tuning = self.tuner.end_step(reading, steps=self.steps.count)
            if tuning is not None:
                self.steps.replace_buckets(tuning.choices)
            self.clock.running = self.tuner.times_next_step

    def release(self) -> None:
        """Prepares for the next step; the exchanged gradients now belong to the optimizer."""
        for slot in self.slots:
            slot.release(self.passes)
        self.steps.release()
        self._guard.release()
        self.rates.groups.release()
        if self.phase is not Phase.APPLIED:
            self.phase = Phase.IDLE

    @contextmanager
    def ending(self, *, unless: type[BaseException] | tuple[()] = ()) -> Iterator[None]:
        """Returns a context in which any error, unless of a class, ends the exchange; see `end`."""
        try:
            yield
        except unless:
            raise
        except BaseException as error:
            raise self.end(error)  # noqa: B904  # mostly the same error

    def end(self, error: BaseException) -> BaseException:
        """Ends the exchange on all ranks; returns the error to raise.

        If the exchange had ended before, that is the error that ended it: all later errors may be
        consequences, such as gradients that are no longer exchanged.
        """
        if isinstance(error, self.link.host.failure) and not isinstance(error, HvdSparseError):
            error = self.core.cause() or error
        elif isinstance(error, Exception):  # an interrupt is not the exchange's failure
            error = self.core.end() or error
        self.fail(f"{type(error).__name__}: {error}")
        return error

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks; returns once no memory is being written any more."""
        GradientExchange.any_ended_early = True
        self.link.fail(reason)
        self.steps.abandon()

    def detach(self, reason: str) -> None:
        """Ends the exchange on all ranks, between two steps; accepts no more gradients."""
        self.settle(quietly=True)
        hooks.remove(self._hooks)
        self.link.fail(reason)

    def close(self) -> None:
        """Ends this rank's part, or in mid-step that of all ranks; accepts no more gradients."""
        self.settle(quietly=True)
        hooks.remove(self._hooks)
        if self.phase is Phase.GATHERING:
            self.fail("the ranks were shut down, or a state restored, amid a step")
        self.link.close()

    def shares_parameters_with(self, named: NamedParameters) -> bool:
        """Returns true if any of the parameters is exchanged here."""
        own = {id(param) for _, param in self.named}
        return any(id(param) in own for _, param in named)

    def velocities(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields each parameter that has a velocity on this rank with that: float32, flat."""
        for name, velocity in self.steps.velocities().items():
            yield self.parameters[name], velocity

    def replan(self) -> None:
        """Measures the network anew, between two steps, and restarts tuning. Collective."""
        assert self.tuner is not None
        self.end_step()
        self.release()
        self.tuner.restart(self._measurer.network())
        self.steps.replace_buckets(self.tuner.tuning.choices)

    def restore_tuning(self, settled: str | None, *, step: int) -> None:
        """Restores, on all ranks alike, what `tuner.state()` returned after `step` steps."""
        assert self.tuner is not None
        self.steps.replace_buckets(self.tuner.load(settled, steps=step).choices)
