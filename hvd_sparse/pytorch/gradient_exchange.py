"""Averages a model's gradients over all ranks while backward still runs."""

from __future__ import annotations

import enum
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import ClassVar

import torch
from torch.utils.hooks import RemovableHandle

from hvd_sparse import log
from hvd_sparse.buckets import Layer
from hvd_sparse.errors import (
    ExchangeFailedError,
    GradientInFlightError,
    HvdSparseError,
    NonFiniteGradientError,
)
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.exchange.messages import Messages
from hvd_sparse.places.step_clock import Reading, StepClock
from hvd_sparse.planning import plan
from hvd_sparse.pytorch import guards, step_hooks, step_marks
from hvd_sparse.pytorch.dense import DenseReducer
from hvd_sparse.pytorch.devices import common_device
from hvd_sparse.pytorch.driven_steps import DrivenSteps
from hvd_sparse.pytorch.exchange_state import ExchangeState
from hvd_sparse.pytorch.gradient_memory import MemoryInUse
from hvd_sparse.pytorch.host import TorchHost
from hvd_sparse.pytorch.learning_rates import LearningRates
from hvd_sparse.pytorch.loss_scale import LossScale
from hvd_sparse.pytorch.momentum import Momentum
from hvd_sparse.pytorch.owner import weakly
from hvd_sparse.pytorch.parameters import NamedParameters
from hvd_sparse.pytorch.plain_steps import PlainSteps
from hvd_sparse.pytorch.settings import Settings, check_not_twice
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


class GradientExchange(PlainSteps):
    """The exchange of one optimizer's gradients.

    A gradient that backward has completed is handed to the core, with the others of its op; the
    core starts buckets, in one order on every rank. Ops lie in reverse order of registration. Small
    and 1-d gradients go through the host, as does all that is faster dense, and what another
    optimizer updates.

    Gradients are exchanged where parameters have them, and each arrives by a hook on its parameter.
    A subclass takes them from elsewhere.

    Attributes:
        world: The ranks.
        parameters: The parameters that are exchanged, by name.
        layers: Layers that can be sparse, in the order in which their gradients are expected.
        tuner: Decides how they are exchanged, if the compression is adaptive.
        rates: The learning rates that the residuals follow.
        momentum: The momentum that ranks apply before error feedback.
        stats: Cost of the steps.
        passes: Backward passes per step.
        conditions: Conditions under which plan and thresholds are found, for checkpoints.
        mark: The user's mark of the current step; see `mark_step`.
        any_ended_early: True if an error has ended an exchange of this process, perhaps in the
            middle of a step: the host may then wait for ever for the rest of its dense operations.
    """

    any_ended_early: ClassVar[bool] = False
    _slot_type: ClassVar[type[Slot]] = Slot

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
    ) -> None:
        self.world = world
        self.passes = settings.backward_passes_per_step
        self.mark = ""
        self.rates = LearningRates(optimizer, settings.compression)
        self.momentum = Momentum(optimizer, settings.compression, size=world.size)
        self.stats = Stats()
        self._owner = weakly(optimizer)
        self._exchange = exchange
        self._sparse_as_dense = settings.sparse_as_dense
        self._loss_scale = LossScale(settings.compression.loss_scale)
        self._phase = Phase.IDLE
        self._paused = False
        self._known = {id(param) for _, param in named}
        self._device = common_device(named)

        optimized = {id(param) for group in optimizer.param_groups for param in group["params"]}
        self._slots = [
            self._slot_type(name, param, self.passes) for name, param in named if param.numel() > 0
        ]
        for slot in self._slots:
            slot.optimized = id(slot.param) in optimized
        self.parameters = {slot.name: slot.param for slot in self._slots}
        self._memory = MemoryInUse()
        compression = self._compression = settings.compression
        self.conditions = conditions_of(
            compression, local_size=exchange.local_size, device=str(self._device)
        )
        large = [
            slot
            for slot in reversed(self._slots)
            if slot.optimized and compression.takes(slot.param.shape)
        ]
        self.layers = tuple(Layer(slot.name, slot.param.numel()) for slot in large)
        self._large = {slot.name: slot for slot in large}
        self._host_failure = host.failure
        self._dense = DenseReducer(
            prefix,
            host=host,
            reduction=settings.reduction,
            messages=messages,
            timeline=exchange.timeline,
        )
        self._driven = DrivenSteps(
            self.layers if world.size > 1 else (),  # a single rank has no residuals
            list(reversed(self._slots)),
            settings,
            world=world,
            exchange=exchange,
            dense=self._dense,
            rates=self.rates,
            loss_scale=self._loss_scale,
            momentum=self.momentum,
            messages=messages,
            device=self._device,
        )
        self._clock = StepClock(self.layers, measurer.place.clock)
        self._clock.running = False  # until the tuner asks for times
        self._measurer = measurer
        self.tuner = None
        if world.size > 1:
            self.tuner = measurer.tuner(self.layers, compression, messages)
            if self.tuner is None:
                self._driven.replace_buckets(plan.fixed_choices(self.layers, compression))
        self._hooks = self._listen()
        # The core writes to memory that is freed with this object, so it has to end first.
        weakref.finalize(self, exchange.close).atexit = False
        # A parameter and its hook keep each other alive, in a cycle that no collector sees.
        weakref.finalize(self, guards.remove, self._hooks).atexit = False

    def _listen(self) -> list[RemovableHandle]:
        """Registers the hooks by which gradients arrive."""
        return [
            slot.param.register_post_accumulate_grad_hook(guards.hook(weakref.ref(self), slot))  # type: ignore[no-untyped-call]
            for slot in self._slots
            if slot.param.requires_grad  # one frozen later is launched at the end of the step
        ]

    @property
    def steps(self) -> int:
        """Steps exchanged so far."""
        return self._driven.count

    @property
    def pending(self) -> bool:
        """True if residuals may be added to dense gradients of the next step; see `Steps`."""
        return self._driven.pending

    @property
    def state(self) -> ExchangeState:
        """State that this rank keeps from step to step."""
        return self._driven.state

    def synchronize(self) -> None:
        """Waits until every gradient is the average; a no-op until gradients arrive again.

        Raises:
            NonFiniteGradientError: On every rank, if a gradient is not finite on one. All gradients
                are then zero, the residuals keep the finite entries, and the next step is normal.
                With loss scaling, all gradients are infinite instead, and there is no error.
            GradientInFlightError: A gradient was changed after backward. The exchange has ended.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        if self._phase is not Phase.EXCHANGED:
            self._complete()

    def _complete(self) -> None:
        """Ends a step, in which perhaps not one gradient has arrived; see `synchronize`."""
        try:
            self._exchange.check()
            with torch.no_grad():
                self._finish_step()
        except NonFiniteGradientError:
            for slot in self._slots:
                slot.discard_result()
            self.release()
            raise
        except BaseException as error:
            raise self._end(error)  # noqa: B904  # mostly the same error

    def release(self) -> None:
        """Prepares for the next step; the exchanged gradients now belong to the optimizer."""
        for slot in self._slots:
            slot.release(self.passes)
        self._driven.release()
        self._loss_scale.release()
        self._memory.clear()
        self.rates.groups.release()
        self._phase = Phase.IDLE

    def refuse_if_busy(self, reason: str) -> None:
        """Ends the exchange if gradients have arrived but are not exchanged yet.

        Raises:
            GradientInFlightError: There are such gradients; other ranks get an ExchangeFailedError.
            ExchangeFailedError: There are such gradients, but the exchange had ended before.
        """
        if self._phase is Phase.GATHERING:
            reason = guards.step_without_exchange(self._slots) or reason
            raise self._end(GradientInFlightError(reason))

    def stepping(self, *, synchronized: bool) -> None:
        """Called before the optimizer's step.

        Args:
            synchronized: True if the user says that `synchronize` was called.

        Raises:
            GradientInFlightError: It was not.
        """
        if synchronized:
            self.refuse_if_busy(
                "optimizer.step() was called within skip_synchronize(), but not after synchronize()"
            )

    def forget_gradients(self, reason: str) -> None:
        """Lets gradients be zeroed; raises GradientInFlightError if they are being exchanged."""
        self.refuse_if_busy(reason)
        self.release()

    def update(self) -> None:
        """Called before step() moves the weights: gradients must be averages."""
        self.synchronize()
        self.momentum.hide()

    def stepped(self) -> None:
        """Ends the optimizer's step.

        Raises:
            GradientInFlightError: step() itself computed gradients that were not exchanged.
        """
        self.refuse_if_busy("optimizer.step() computed gradients without exchanging them")
        self.release()

    def refuse_if_ended(self) -> None:
        """Raises ExchangeFailedError, with its first cause, if the exchange has ended."""
        self._exchange.check()

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks; returns once no memory is being written any more."""
        GradientExchange.any_ended_early = True
        self._exchange.fail(reason)
        self._driven.abandon()

    def detach(self, reason: str) -> None:
        """Ends the exchange on all ranks; accepts no more gradients."""
        guards.remove(self._hooks)
        self._exchange.fail(reason)

    def close(self) -> None:
        """Ends this rank's part, or in mid-step that of all ranks; accepts no more gradients."""
        guards.remove(self._hooks)
        if self._phase is Phase.GATHERING:
            self.fail("the ranks were shut down, or a state restored, amid a step")
        self._exchange.close()

    def shares_parameters_with(self, named: NamedParameters) -> bool:
        """Returns true if any of the parameters is exchanged here."""
        return any(id(param) in self._known for _, param in named)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignores gradients within the context."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def arrived(self, slot: Slot) -> None:
        """Accepts a gradient to which backward has just added."""
        if self._paused:
            return
        try:
            self._take(slot)
        except BaseException as error:
            raise self._end(error)  # noqa: B904

    def _end(self, error: BaseException) -> BaseException:
        """Ends the exchange on all ranks; returns the error to raise.

        If the exchange had ended before, that is the error that ended it: all later errors may be
        consequences, such as gradients that are no longer exchanged.
        """
        if isinstance(error, self._host_failure) and not isinstance(error, HvdSparseError):
            error = self._exchange.cause() or error
        elif isinstance(error, Exception):  # an interrupt is not the exchange's failure
            error = self._exchange.end() or error
        self.fail(f"{type(error).__name__}: {error}")
        return error

    def _take(self, slot: Slot) -> None:
        guards.check_not_capturing(self._device)
        if self._phase is not Phase.GATHERING:
            self._begin(slot)
        if slot.launched or slot.passes_left == 0:
            guards.refuse_gradient(slot)
        self._check(slot)
        slot.note_arrival()
        slot.passes_left -= 1
        if slot.passes_left > 0:
            return
        with torch.no_grad(), self._clock.arrival(slot.name):
            self._driven.arrived(slot)

    def _check(self, slot: Slot) -> None:
        guards.check_place(slot, self._device)
        guards.check_without_graph(slot)
        guards.check_layout(slot, densify=self._sparse_as_dense)
        guards.check_memory(slot, self._memory)
        if slot.name in self._large:
            guards.check_owner(slot, self.rates.groups)

    def _check_not_an_average(self, slot: Slot) -> None:
        """Raises GradientInFlightError if backward has added to the average of a former step."""
        guards.check_not_an_average(slot)

    def _begin(self, slot: Slot) -> None:
        if self._phase is Phase.EXCHANGED:
            self._check_not_an_average(slot)
            self.release()
        step_hooks.surround(self._owner())  # step() may have been replaced since
        self._begin_step()
        self._phase = Phase.GATHERING
        if self._exchange.timeline is not None:
            self._exchange.timeline.step_begins(self.steps)

    def _begin_step(self) -> None:
        self._driven.begin()
        if self._exchange.checks:
            self._exchange.note(step_marks.describe(self._owner(), self.mark))

    def _launch_rest(self) -> None:
        """Hands over what is still missing in a step: its gradients are all there are."""
        guards.check_not_capturing(self._device)
        if self._phase is not Phase.GATHERING:  # not one gradient has arrived
            self._begin_step()
        if self._exchange.timeline is not None:
            self._exchange.timeline.synchronize_begins(self.steps)
        optimizer = self._owner()
        guards.check_parameters(optimizer, self._known)
        check_not_twice(optimizer, self._compression)
        for slot in self._slots:
            guards.check_untouched(slot)
        for slot in self._slots:
            if not slot.launched:
                self._check(slot)
        self._driven.launch_missing()

    def _finish_step(self) -> None:
        self._launch_rest()
        start = time.perf_counter()
        refuse = self._await_step(since=start)
        reading = self._clock.end_step()
        try:
            self._driven.commit(refuse)
        except NonFiniteGradientError:
            if not self._loss_scale.skips:
                raise
            for slot in self._slots:
                slot.mark_not_finite()
            applied = False
        else:
            for slot in self._slots:
                slot.write_back()
            applied = True
        self._phase = Phase.EXCHANGED
        self._end_step(reading, measures=applied)

    def _await_step(self, *, since: float) -> str | None:
        """Waits for all that is in flight, and notes its cost; see `DrivenSteps.wait`."""
        buckets, refuse = self._driven.wait()
        last = StepStats(
            step=self.steps,
            buckets=buckets,
            dense_bytes=self._dense.bytes,
            wait_seconds=time.perf_counter() - since,
            transport=self._exchange.transport,
        )
        self.stats = Stats(last=last, total=self.stats.total.plus(last))
        if self._exchange.timeline is not None:
            self._exchange.timeline.step_ends(last)
        return refuse

    def _end_step(self, reading: Reading | None, *, measures: bool) -> None:
        """Ends a step that all ranks have committed, so it counts here, too: the next one raises.

        An error ends the exchange, and is logged, since nobody catches it.
        """
        try:
            self._after_commit(reading, measures=measures)
        except Exception as error:
            unexpected = not isinstance(error, (self._host_failure, ExchangeFailedError))
            cause = self._end(error)
            with suppress(Exception):  # from the program's own log handler
                log.logger.warning(
                    *("after a step that counts: %s: %s", type(cause).__name__, cause),
                    exc_info=unexpected,
                )

    def _after_commit(self, reading: Reading | None, *, measures: bool) -> None:
        """Finishes a step: measures it, and may adopt another order or plan for the next ones."""
        assert self.stats.last is not None
        last = self.stats.last
        quality = self._driven.measured(last.step) if measures else None
        if quality is not None:
            self.stats = replace(self.stats, last=replace(last, quality=quality))
        self._driven.end_step()
        if self.tuner is not None:
            tuning = self.tuner.end_step(reading, steps=self.steps)
            if tuning is not None:
                self._driven.replace_buckets(tuning.choices)
            self._clock.running = self.tuner.times_next_step

    def load(
        self,
        residuals: Mapping[str, torch.Tensor],
        sparsifier_states: Mapping[str, torch.Tensor],
        velocities: Mapping[str, torch.Tensor] | None = None,
        *,
        step: int,
        pending: bool = True,
    ) -> None:
        """Loads another exchange's state; see `DrivenSteps.load`."""
        self._driven.load(residuals, sparsifier_states, velocities, step=step, pending=pending)

    def replan(self) -> None:
        """Measures the network anew, between two steps, and restarts tuning. Collective."""
        assert self.tuner is not None
        self.refuse_if_ended()
        self.refuse_if_busy(
            "replan() was called after loss.backward() but before optimizer.step() or "
            "optimizer.synchronize()"
        )
        self.release()
        self.tuner.restart(self._measurer.network())
        self._driven.replace_buckets(())

    def restore_tuning(self, settled: str | None, *, step: int) -> None:
        """Restores, on all ranks alike, what `tuner.state()` returned after `step` steps."""
        assert self.tuner is not None
        self._driven.replace_buckets(self.tuner.load(settled, steps=step).choices)
