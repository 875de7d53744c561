"""Averages a model's gradients over all ranks while backward still runs.

In a step, gradients arrive one by one, those that are missing are launched at its end, all are
waited for, and the step is committed. A way of taking an optimizer's step (step_way.py) calls these
phases, and owns the exchange.
"""

from __future__ import annotations

import enum
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

import torch
from torch.utils.hooks import RemovableHandle

from hvd_sparse import log
from hvd_sparse.buckets import Layer
from hvd_sparse.errors import (
    ExchangeFailedError,
    HvdSparseError,
    NonFiniteGradientError,
)
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.exchange.messages import Messages
from hvd_sparse.places.step_clock import Reading, StepClock
from hvd_sparse.planning import plan
from hvd_sparse.pytorch import guards, step_hooks, step_marks
from hvd_sparse.pytorch.devices import common_device
from hvd_sparse.pytorch.driven_steps import DrivenSteps
from hvd_sparse.pytorch.exchange_state import ExchangeState
from hvd_sparse.pytorch.host import TorchHost
from hvd_sparse.pytorch.learning_rates import LearningRates
from hvd_sparse.pytorch.momentum import Momentum
from hvd_sparse.pytorch.owner import weakly
from hvd_sparse.pytorch.parameters import NamedParameters
from hvd_sparse.pytorch.settings import Settings
from hvd_sparse.pytorch.slots import Slot
from hvd_sparse.ranks.world import World
from hvd_sparse.state.saved_exchange import conditions_of
from hvd_sparse.stats.step_stats import Stats, StepStats
from hvd_sparse.tuning.measurer import Measurer


class Phase(enum.Enum):
    """The state of a step's gradients."""

    IDLE = "no gradient has arrived in this step"
    GATHERING = "gradients arrive"
    EXCHANGED = "the gradients are averages; the optimizer has not stepped yet"
    APPLYING = "the optimizer has stepped, and applies gradients as they arrive"


class GradientExchange:
    """The exchange of one optimizer's gradients.

    A gradient that backward has completed is handed to the core, with the others of its op; the
    core starts buckets, in one order on every rank. Ops lie in reverse order of registration. Small
    and 1-d gradients go through the host, as does all that is faster dense, and what another
    optimizer updates.

    Attributes:
        world: The ranks.
        parameters: The parameters that are exchanged, by name.
        slots: Their gradients, in order of registration.
        layers: Layers that can be sparse, in the order in which their gradients are expected.
        phase: The phase of the step.
        paused: True while gradients that arrive are ignored.
        driven: The steps, as the core runs them.
        core: The core's exchange between the ranks.
        clock: Times the steps that the tuner asks for.
        optimizer: Returns the optimizer; raises HvdSparseError once that is gone.
        tuner: Decides how they are exchanged, if the compression is adaptive.
        rates: The learning rates that the residuals follow.
        momentum: The momentum that ranks apply before error feedback.
        stats: Cost of the steps.
        averages: True if results are averages over the ranks, and not sums.
        passes: Backward passes per step.
        conditions: Conditions under which plan and thresholds are found, for checkpoints.
        mark: The user's mark of the current step; see `mark_step`.
        any_ended_early: True if an error has ended an exchange of this process, perhaps in the
            middle of a step: the host may then wait for ever for the rest of its dense operations.
    """

    any_ended_early: ClassVar[bool] = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named: NamedParameters,
        settings: Settings,
        *,
        world: World,
        exchange: Exchange,
        host: TorchHost,
        prefix: str,
        messages: Messages,
        measurer: Measurer,
        slot_type: type[Slot],
    ) -> None:
        compression = settings.compression
        self.world = world
        self.averages = settings.reduction.averages
        self.passes = settings.backward_passes_per_step
        self.mark = ""
        self.phase = Phase.IDLE
        self.paused = False
        self._open: tuple[Reading | None, bool] | None = None  # arguments of `end_step`
        self.optimizer = weakly(optimizer)
        self.rates = LearningRates(optimizer, compression)
        self.momentum = Momentum(
            optimizer, compression, size=world.size, averages=settings.reduction.averages
        )
        self.stats = Stats()
        self.core = exchange
        self._host_failure = host.failure
        self._known = {id(param) for _, param in named}
        device = common_device(named)
        optimized = {id(param) for group in optimizer.param_groups for param in group["params"]}
        self.slots = [
            slot_type(name, param, self.passes) for name, param in named if param.numel() > 0
        ]
        for slot in self.slots:
            slot.optimized = id(slot.param) in optimized
        self.parameters = {slot.name: slot.param for slot in self.slots}
        self.layers = tuple(
            Layer(slot.name, slot.numel)
            for slot in reversed(self.slots)
            if slot.optimized and compression.takes(slot.param.shape)
        )
        self.conditions = conditions_of(
            compression, local_size=exchange.local_size, device=str(device)
        )
        self._guard = guards.Guard(
            device,
            self.rates.groups,
            known=self._known,
            large={layer.name for layer in self.layers},
            settings=settings,
        )
        sent = plan.sent_layers(self.layers, compression)
        self.driven = DrivenSteps(
            sent if world.size > 1 else (),  # a single rank has no residuals
            list(reversed(self.slots)),
            settings,
            world=world,
            exchange=exchange,
            host=host,
            prefix=prefix,
            messages=messages,
            rates=self.rates,
            momentum=self.momentum,
            device=device,
        )
        self.clock = StepClock(self.layers, measurer.place.clock)
        self.clock.running = False  # until the tuner asks for times
        self._measurer = measurer
        self.tuner = None
        if world.size > 1:
            self.tuner = measurer.tuner(self.layers, compression, messages)
            if self.tuner is None:
                self.driven.replace_buckets(plan.fixed_choices(sent, compression))
        self._hooks: list[RemovableHandle] = []
        # The core writes to memory that is freed with this object, so it has to end first.
        weakref.finalize(self, exchange.close).atexit = False
        # A parameter and its hook keep each other alive, in a cycle that no collector sees.
        weakref.finalize(self, guards.remove, self._hooks).atexit = False

    @property
    def steps(self) -> int:
        """Steps exchanged so far."""
        return self.driven.count

    @property
    def state(self) -> ExchangeState:
        """State that this rank keeps from step to step."""
        return self.driven.state

    def listen(self, receiver: guards.Receiver) -> None:
        """Reports each gradient that backward has added to at its parameter.

        Args:
            receiver: The receiver of the reports: this exchange, or an object that passes them on
                to it.
        """
        self._hooks += [
            slot.param.register_post_accumulate_grad_hook(guards.hook(weakref.ref(receiver), slot))  # type: ignore[no-untyped-call]
            for slot in self.slots
            if slot.at_parameter and slot.param.requires_grad  # launch() hands over the others
        ]

    def set_passes(self, passes: int) -> None:
        """Sets the backward passes per step, between two steps."""
        self.passes = passes
        self.release()

    def shares_parameters_with(self, named: NamedParameters) -> bool:
        """Returns true if any of the parameters is exchanged here."""
        return any(id(param) in self._known for _, param in named)

    def arrived(self, slot: Slot) -> None:
        """Accepts a gradient to which backward has just added."""
        if self.paused:
            return
        try:
            guards.check_not_capturing(self._guard.device)
            if self.phase is not Phase.GATHERING:
                self._begin()
            self._guard.admit(slot)
            slot.passes_left -= 1
            if slot.passes_left == 0:
                with torch.no_grad(), self.clock.arrival(slot.name):
                    self.driven.arrived(slot)
        except BaseException as error:
            raise self.end(error)  # noqa: B904

    def _begin(self) -> None:
        if self.phase is Phase.EXCHANGED:  # the averages belong to the program; see discards.py
            self.release()
        step_hooks.surround(self.optimizer())  # step() may have been replaced since
        self._begin_step()
        self.phase = Phase.GATHERING
        if self.core.timeline is not None:
            self.core.timeline.step_begins(self.steps)

    def _begin_step(self) -> None:
        self.driven.begin()
        if self.core.checks:
            self.core.note(step_marks.describe(self.optimizer(), self.mark))

    def complete(self) -> None:
        """Ends a step, in which perhaps not one gradient has arrived: all gradients are averages.

        Raises:
            NonFiniteGradientError: On every rank, if a gradient is not finite on one. All gradients
                are then zero, the residuals keep the finite entries, and the next step is normal.
                With loss scaling, there is no error: all gradients are infinite instead, and the
                residuals are what they were before.
            GradientInFlightError: A gradient was changed after backward. The exchange has ended.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        self.complete_alone()
        self.end_open_step()

    def complete_alone(self) -> None:
        """Like `complete`, but without what ranks do together after a step: `end_open_step`.

        So this rank may call it before others do, once all have launched the step.
        """
        try:
            with torch.no_grad():
                self.launch()
                self.wait(since=time.perf_counter())
                self._commit()
        except NonFiniteGradientError:
            for slot in self.slots:
                slot.discard_result()
            self.release()
            raise
        except BaseException as error:
            raise self.end(error)  # noqa: B904  # mostly the same error

    def launch(self) -> None:
        """Hands over the gradients that have not arrived; no others will arrive in this step."""
        self.core.check()
        guards.check_not_capturing(self._guard.device)
        if self.phase is not Phase.GATHERING:  # not one gradient has arrived
            self._begin_step()
        if self.core.timeline is not None:
            self.core.timeline.synchronize_begins(self.steps)
        self._guard.check_step(self.optimizer(), self.slots)
        self.driven.launch_missing()

    def wait(self, *, since: float) -> None:
        """Waits for all that is in flight, and notes its cost; see `DrivenSteps.wait`.

        Args:
            since: The beginning of the wait, by `time.perf_counter`.
        """
        buckets = self.driven.wait()
        last = StepStats(
            step=self.steps,
            buckets=buckets,
            dense_bytes=self.driven.dense.bytes,
            wait_seconds=time.perf_counter() - since,
            transport=self.core.transport,
        )
        self.stats = Stats(last=last, total=self.stats.total.plus(last))
        if self.core.timeline is not None:
            self.core.timeline.step_ends(last)

    def _commit(self) -> None:
        reading = self.clock.end_step()
        try:
            self.driven.commit()
        except NonFiniteGradientError:
            if not self.driven.loss_scale.skips:
                raise
            if self.driven.can_undo:  # the scaler throws this step away
                self.driven.undo(self.parameters)
            for slot in self.slots:
                slot.mark_not_finite()
            applied = False
        else:
            for slot in self.slots:
                slot.write_back()
            applied = True
        self._open = reading, applied

    def end_open_step(self) -> None:
        """Ends a step that `complete_alone` has left open, if there is one. Collective."""
        if self._open is not None:
            (reading, measures), self._open = self._open, None
            self.end_step(reading, measures=measures)

    def forget_open_step(self) -> None:
        """Leaves such an end out, since other state is loaded, on all ranks."""
        self._open = None

    def end_step(self, reading: Reading | None, *, measures: bool) -> None:
        """Ends a step that all ranks have committed.

        The step counts, so an error is not raised here: it ends the exchange and is logged, and the
        next step raises it.

        Args:
            reading: The times of the step, if they are known.
            measures: True if the quality of selection may be measured.
        """
        self.phase = Phase.EXCHANGED
        try:
            self._after_commit(reading, measures=measures)
        except Exception as error:
            unexpected = not isinstance(error, (self._host_failure, ExchangeFailedError))
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
        quality = self.driven.measured(last.step) if measures else None
        if quality is not None:
            self.stats = replace(self.stats, last=replace(last, quality=quality))
        self.driven.end_step()
        if self.tuner is not None:
            tuning = self.tuner.end_step(reading, steps=self.steps)
            if tuning is not None:
                self.driven.replace_buckets(tuning.choices)
            self.clock.running = self.tuner.times_next_step

    def release(self) -> None:
        """Prepares for the next step; the exchanged gradients now belong to the optimizer."""
        for slot in self.slots:
            slot.release(self.passes)
        self.driven.release()
        self._guard.release()
        self.rates.groups.release()
        self.phase = Phase.IDLE

    def end(self, error: BaseException) -> BaseException:
        """Ends the exchange on all ranks; returns the error to raise.

        If the exchange had ended before, that is the error that ended it: all later errors may be
        consequences, such as gradients that are no longer exchanged.
        """
        if isinstance(error, self._host_failure) and not isinstance(error, HvdSparseError):
            error = self.core.cause() or error
        elif isinstance(error, Exception):  # an interrupt is not the exchange's failure
            error = self.core.end() or error
        self.fail(f"{type(error).__name__}: {error}")
        return error

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks; returns once no memory is being written any more."""
        GradientExchange.any_ended_early = True
        self.core.fail(reason)
        self.driven.abandon()

    def detach(self, reason: str) -> None:
        """Ends the exchange on all ranks; accepts no more gradients."""
        guards.remove(self._hooks)
        self.core.fail(reason)

    def close(self) -> None:
        """Ends this rank's part, or in mid-step that of all ranks; accepts no more gradients."""
        guards.remove(self._hooks)
        if self.phase is Phase.GATHERING:
            self.fail("the ranks were shut down, or a state restored, amid a step")
        self.core.close()

    def replan(self) -> None:
        """Measures the network anew, between two steps, and restarts tuning. Collective."""
        assert self.tuner is not None
        self.end_open_step()
        self.release()
        self.tuner.restart(self._measurer.network())
        self.driven.replace_buckets(())

    def restore_tuning(self, settled: str | None, *, step: int) -> None:
        """Restores, on all ranks alike, what `tuner.state()` returned after `step` steps."""
        assert self.tuner is not None
        self.driven.replace_buckets(self.tuner.load(settled, steps=step).choices)
