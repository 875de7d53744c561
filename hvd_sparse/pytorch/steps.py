"""The steps of one optimizer: complete gradients go to the core, or to the host if sent dense."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from hvd_sparse import _core
from hvd_sparse.compression.buckets import Layer
from hvd_sparse.exchange.step_buckets import StepBuckets, op_gradients_of
from hvd_sparse.planning.plan import BucketChoice
from hvd_sparse.pytorch.dense import DenseReducer
from hvd_sparse.pytorch.devices import StepStream
from hvd_sparse.pytorch.exchange_state import ExchangeState
from hvd_sparse.pytorch.handovers import Handover, Part, handovers_of, parts_of
from hvd_sparse.pytorch.host import Link
from hvd_sparse.pytorch.learning_rates import LearningRates
from hvd_sparse.pytorch.local_gradient import LocalGradient
from hvd_sparse.pytorch.momentum import Momentum
from hvd_sparse.pytorch.settings import Settings
from hvd_sparse.pytorch.slots import Slot, buffer_of
from hvd_sparse.stats.quality import Quality
from hvd_sparse.stats.quality_meter import QualityMeter
from hvd_sparse.stats.residual_growth import ResidualGrowth

# In a sparse step, dense gradients are summed together up to this size, as in DDP's first bucket.
_DENSE_BYTES = 1 << 20


class Steps:
    """The steps of one optimizer, run by the core's engine on the thread that has gradients.

    In each step: `begin`, `arrived` for each gradient, `launch_missing`, perhaps `complete` for
    parts, `wait`, `commit`, `end_step`. If anything raises in between, `abandon` ends the step.

    Each parameter, or each of its slices, belongs to an op (see step_buckets.py), except those that
    are always sent dense and have no velocity.

    Args:
        layers: The layers that can be sparse, as they are sent, in that order, if there are peers.
        slots: The slots of all parameters, in that order.
        settings: The user's settings.
        link: The connection between the ranks, without buckets.
        rates: Learning rates, which determine the decay of residuals.
        momentum: Momentum that ranks apply before error feedback.
        device: Device of all parameters.

    Attributes:
        count: Steps so far, refused ones included.
        device: Device of all parameters.
        state: State that this rank keeps from step to step.
        dense: Reduces what is sent dense.
        local: This rank's own gradients.
        remembers: True if a step remembers the state before it, for `undo`.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        slots: Sequence[Slot],
        settings: Settings,
        link: Link,
        *,
        rates: LearningRates,
        momentum: Momentum,
        device: torch.device,
    ) -> None:
        self._slots = {slot.name: slot for slot in slots}
        self._settings, self._compression = settings, settings.compression
        self._link, self._core = link, link.core
        self._rates = rates
        self._momentum = momentum
        self.device = device
        self.dense = DenseReducer(link, settings.reduction, timeline=link.core.timeline)
        self._stream = StepStream.on(device)
        size, local_size = link.world.size, link.core.local_size
        self.local = LocalGradient(settings, size=size)
        self._meter = QualityMeter(
            settings.compression, link.messages.add_up, size=size, local_size=local_size
        )
        self._growth = ResidualGrowth(link.world.rank)
        self.remembers = False
        self._before: tuple[bool, dict[str, float]] = True, {}  # `pending` and rates, for `undo`
        self._core_takes_part = False  # a sparse bucket, a residual or a velocity does
        self._used: list[int] = []  # ops, in the order in which parts of this step were completed
        self._stats: tuple[_core.BucketStats, ...] = ()  # of the last step
        sparse = {layer.parameter for layer in layers}
        # A gradient that is always sent dense has an op, too, if it has a velocity.
        self._velocity_only = [
            Layer(slot.name, slot.numel)
            for slot in slots
            if momentum.exists and slot.name not in sparse and slot.optimized and slot.numel
        ]
        self._lay_out(layers)

    def _lay_out(self, layers: Sequence[Layer]) -> None:
        """Lays out ops and their memory for these layers, in this order; all are sent dense."""
        ops = op_gradients_of(layers, self._compression)
        self._layers = list(layers)
        layers_of = [op.layers for op in ops] + [(one,) for one in self._velocity_only]
        self._handovers = handovers_of(self._slots, layers_of, with_residual=len(ops))
        self._taking = self._handovers  # those that take part in this step
        self._handover_of = {slot.name: one for one in self._handovers for slot in one.slots}
        self.state = ExchangeState(
            ops, self._velocity_only, momentum=self._momentum.exists, device=self.device
        )
        self._buckets = StepBuckets(
            self._core,
            ops,
            dense=self._velocity_only,
            compression=self._compression,
            reduction=self._settings.reduction,
            size=self._link.world.size,
            device=str(self.device),
            broadcast_order=self._link.messages.broadcast_order,
        )
        self._engine = self._core.make_engine(
            self._buckets.op_sizes,
            self._buckets.adopt(()),
            _core.StepRules(
                has_velocity=self._momentum.exists,
                masks_velocity=self._momentum.masks,
                measure_every=self._compression.feedback.quality_every or 0,
                device=str(self.device),
            ),
        )
        self._room = torch.empty(self._engine.room, dtype=torch.float32, device=self.device)

    @property
    def count(self) -> int:
        """The number of steps so far, refused ones included."""
        return self._engine.steps

    @property
    def pending(self) -> bool:
        """True if residuals of what is sent dense may be added to the next gradients.

        Otherwise, on all ranks, they hold rounding errors of the gradients' number type, which wait
        until the buckets are replaced. Read it between two steps, or once the exchange is closed.
        """
        return self._engine.pending

    def replace_buckets(self, choices: Sequence[BucketChoice]) -> None:
        """Replaces the buckets; between two steps, on all ranks alike.

        Residuals and velocities stay. Sparsifier states become zero if the plan has another order
        of layers, for which memory is laid out anew.

        Args:
            choices: The new buckets, in the order in which their gradients are expected; if there
                are none, all layers are sent dense.
        """
        by_name = {layer.name: layer for layer in self._layers}
        layers = [by_name[name] for choice in choices for name in choice.layers]
        if layers and layers != self._layers:
            former, count = self.state, self.count
            self._buckets.adopt(())  # takes an order of the old ones that is in flight
            self._lay_out(layers)
            self.state.adopt(former)
            self._continue_after(count, pending=True)
        self._core.require_open()
        self._growth.found = False
        self._engine.replace(self._buckets.adopt(choices))
        self._room = torch.empty(self._engine.room, dtype=torch.float32, device=self.device)

    def residuals(self) -> dict[str, torch.Tensor]:
        """Returns this rank's residuals by parameter: float32, flat; zero outside a support."""
        return {name: self._slots[name].spread(one) for name, one in self.state.residuals()}

    def velocities(self) -> dict[str, torch.Tensor]:
        """Returns this rank's velocities by parameter, if momentum is corrected."""
        return {name: self._slots[name].spread(one) for name, one in self.state.velocities()}

    def load(
        self,
        residuals: Mapping[str, torch.Tensor],
        sparsifier_states: Mapping[str, torch.Tensor],
        velocities: Mapping[str, torch.Tensor],
        *,
        step: int,
        pending: bool = True,
    ) -> None:
        """Loads another exchange's state, between two steps, on all ranks, each its own values.

        Args:
            residuals: As `residuals` returns them; missing ones are zero, as in the next two.
            sparsifier_states: As `ExchangeState` returns them.
            velocities: As `velocities` returns them.
            step: Number of steps so far, the same on all ranks.
            pending: The value of `pending` after those steps.
        """
        residuals, velocities = (
            {n: self._slots[n].gather(one) for n, one in parts.items() if n in self._slots}
            for parts in (residuals, velocities)
        )
        self.state.load(residuals, sparsifier_states, velocities)
        self._continue_after(step, pending=pending)

    def _continue_after(self, count: int, *, pending: bool) -> None:
        self._core.require_open()
        self._engine.continue_after(count, pending)

    def begin(self, names: Container[str] | None = None) -> None:
        """Begins a step, on the current stream.

        Args:
            names: The parameters that take part, with all of each bucket; None: all of them.
        """
        self._stream.begin()
        self._used.clear()
        momentum, dampening = self._momentum.of_step()
        if self.remembers:
            self._before = self.pending, self._rates.state()
        now = self.state.now
        ops = None
        self._taking = self._handovers
        if names is not None:
            self._taking = [one for one in self._handovers if one.slots[0].name in names]
            ops = {op for one in self._taking for op in one.ops}
        with self._core.acknowledging():
            self._core_takes_part = self._engine.begin(
                residual=buffer_of(now.residual),
                states=buffer_of(now.states),
                velocity=buffer_of(now.velocity) if now.velocities else None,
                room=buffer_of(self._room),
                loss_scale=self.local.loss_scale,
                momentum=momentum,
                dampening=dampening,
                stream=self._stream.number,
                ops=ops,
            )
        if not self.remembers:
            self.state.forget()
        elif self._core_takes_part:
            self.state.remember()

    @property
    def can_undo(self) -> bool:
        """True if `undo` can restore the state before the last step."""
        return self.state.remembers or not self._core_takes_part

    @torch.no_grad()
    def undo(self, names: Container[str]) -> None:
        """Undoes some parameters' part of the last step, which counts; see `ExchangeState.undo`."""
        if not self._core_takes_part:  # nothing was taken
            return
        was_pending, rates = self._before
        self.state.undo(names)
        self._rates.undo(rates, names)
        self._continue_after(self.count, pending=was_pending or self.pending)

    def arrived(self, slot: Slot) -> None:
        """Takes a complete gradient; sends it once those of its op are there."""
        with self._stream.follow():
            handover = self._handover_of[slot.name]
            handover.missing -= 1
            if handover.missing == 0:
                self._hand_over(handover)

    def flush(self, buffer: torch.Tensor | None) -> None:
        """Sends the dense gradients that have arrived, or lets them wait for more.

        A sparse step has few of them, which are summed together at its end.

        Args:
            buffer: Memory that gradients share, if they do; see `DenseReducer.flush`.
        """
        if self._buckets.choices and self.dense.waiting_bytes < _DENSE_BYTES:
            return
        with self._stream.follow():
            self.dense.flush(buffer)

    def launch_missing(self) -> None:
        """Sends what has not arrived in this step, which counts as zero, and all that waits."""
        with self._stream.follow():
            for handover in self._taking:
                if handover.missing:
                    handover.missing = 0
                    self._hand_over(handover)
            self.dense.flush()

    def _hand_over(self, handover: Handover) -> None:
        slots = handover.slots
        for slot in slots:
            self.local.prepare(slot)
        taken = [slot.take(wide=handover.has_velocity_alone) for slot in slots]
        if handover.ops and self._core_takes_part:
            decays = self._rates.decays(slots)
            is_dense = False
            for op, layers in zip(handover.ops, handover.layers, strict=True):
                gradients = [
                    buffer_of(one, layer.begin, layer.numel)
                    for one, layer in zip(taken, layers, strict=True)
                ]
                # An error is noted by whoever ends the exchange for it.
                is_dense = self._engine.launch(op, gradients, decays, self._stream.number)
            if not is_dense:
                return
        for slot in slots:
            if slot.numel:
                self.dense.launch(slot)

    def wait(self) -> tuple[_core.BucketStats, ...]:
        """Waits until all slots hold their results; returns the statistics of sparse buckets."""
        with self._core.acknowledging():
            stats = self._engine.wait()  # before the host's sums, which this thread has to poll
        if self._core.timeline is not None:
            self._core.timeline.exchanged(stats, waits=True)
        self._stats = tuple(stats)
        self.dense.wait(summed=self._summed)
        self._stream.hand_back()
        return self._stats

    @property
    def _summed(self) -> Callable[[str, bool], None] | None:
        """Takes the host's sums: their gradient's name, and whether they are finite."""
        if not self._core_takes_part:
            return None
        return lambda gradient, finite: self._engine.summed(gradient, finite=finite)

    def commit(self) -> None:
        """Commits the step, all of whose gradients were waited for; other shards' with it.

        Raises:
            NonFiniteGradientError: On every rank alike. Nothing was applied, and the residuals keep
                every finite entry of the gradients, but for those that let a sum overflow.
        """
        replica = self._link.replica
        refuse = "" if replica is None else replica.agreed(self._engine.problem)
        with self._core.acknowledging():
            self._engine.commit(refuse)

    def parts(self) -> list[Part]:
        """Returns the parts of a step, all of whose gradients were launched."""
        exchanged = (choice for choice in self._buckets.choices if not choice.dense)
        bucket_of = {
            name: bucket
            for choice, bucket in zip(exchanged, self._core.buckets, strict=True)
            for name in choice.layers
        }
        return parts_of(self._handovers, bucket_of, core_takes_part=self._core_takes_part)

    @contextmanager
    def on_its_stream(self) -> Iterator[None]:
        """Makes the stream of the step the current one, which waits for it at the end."""
        with self._stream.follow():
            yield
        self._stream.hand_back()

    def complete(self, part: Part) -> None:
        """Waits until the slots of a part hold their results, and commits it.

        On a device, what is queued on the stream of the step from now on finds the results.

        Raises:
            NonFiniteGradientError: On every rank alike; no rank applies this part.
        """
        if not part.buckets:
            self.dense.wait(summed=self._summed, slots=part.slots)
        self._used += part.ops
        with self._core.acknowledging():
            self._engine.commit_part(part.ops)

    def end_step(self) -> None:
        """Ends a committed step; may send or adopt an order of the buckets. Collective."""
        self._core.require_open()
        if self._buckets.several and self._taking is self._handovers:
            order = self._buckets.end_step(self._engine.came, used=self._used, stats=self._stats)
            if order is not None:
                self._engine.reorder(order)
        self._growth.end_step(self.count, self._engine, self._buckets.choices)

    def measured(self, step: int) -> Quality | None:
        """Returns the quality of a committed step; None if it is not measured. Collective."""
        if not self._compression.feedback.quality_every:
            return None
        for bucket, accumulated, left, applied in self._engine.samples():
            layout, choice = self._buckets.layout(bucket), self._buckets.choices[bucket]
            self._meter.take(layout, choice, step, accumulated, left, applied)
        return self._meter.of(step)

    @property
    def residual_grows(self) -> bool:
        """True if this rank's residual grew without bound when it was last looked at."""
        return self._growth.found

    def abandon(self) -> None:
        """Gives up the step of an exchange that has ended; returns once no memory is written."""
        if not self._core.closed and not self._core.inherited:
            self._engine.abandon()

    def release(self) -> None:
        """Prepares for the next step."""
        for handover in self._handovers:
            handover.missing = len(handover.slots)
        self.dense.release()
        self.local.release()
