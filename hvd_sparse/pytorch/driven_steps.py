"""Hands complete gradients to the core, or to the host those that are sent dense."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from hvd_sparse import _core
from hvd_sparse.buckets import Layer
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.exchange.messages import Messages
from hvd_sparse.exchange.step_buckets import StepBuckets, op_gradients_of
from hvd_sparse.exchange.steps import Steps
from hvd_sparse.planning.plan import BucketChoice
from hvd_sparse.pytorch.dense import DenseReducer
from hvd_sparse.pytorch.devices import StepStream
from hvd_sparse.pytorch.exchange_state import ExchangeState
from hvd_sparse.pytorch.host import TorchHost
from hvd_sparse.pytorch.learning_rates import LearningRates
from hvd_sparse.pytorch.local_gradient import LocalGradient
from hvd_sparse.pytorch.loss_scale import LossScale
from hvd_sparse.pytorch.momentum import Momentum
from hvd_sparse.pytorch.settings import Settings
from hvd_sparse.pytorch.slots import Slot, buffer_of
from hvd_sparse.ranks.world import World
from hvd_sparse.stats.quality import Quality
from hvd_sparse.stats.quality_meter import QualityMeter
from hvd_sparse.stats.residual_growth import ResidualGrowth

# In a sparse step, dense gradients are summed together up to this size, as in DDP's first bucket.
_DENSE_BYTES = 1 << 20


class Part(NamedTuple):
    """Gradients of a step that arrive and are applied together.

    Attributes:
        slots: Their slots.
        ops: An op of each of their buckets, or their op; none if the host alone takes part.
        buckets: The exchange's numbers of their buckets: one, or those of a parameter's slices;
            none if they are sent dense.
    """

    slots: list[Slot]
    ops: Sequence[int]
    buckets: Sequence[int]


class Handover(NamedTuple):
    """Gradients that are handed to the core at once.

    Attributes:
        slots: Their slots.
        ops: Their op; one for each slice of a parameter that is sent in slices.
    """

    slots: list[Slot]
    ops: range


class DrivenSteps:
    """The steps of one optimizer, run by the core's engine on the thread that has gradients.

    Each parameter, or each of its slices, belongs to an op (see step_buckets.py), except those that
    are always sent dense and have no velocity. Ops lie in the order in which their gradients are
    expected.

    Args:
        layers: The layers that can be sparse, as they are sent, in that order; none on a single
            rank.
        slots: The slots of all parameters, in that order.
        settings: The user's settings.
        world: The ranks.
        exchange: The exchange, without buckets.
        host: The host, which reduces what is sent dense.
        prefix: Prefix of the names of its operations; see `DenseReducer`.
        messages: Messages between the ranks.
        rates: Learning rates, which determine the decay of residuals.
        momentum: Momentum that ranks apply before error feedback.
        device: Device of all parameters.

    Attributes:
        device: Device of all parameters.
        state: State that this rank keeps from step to step.
        dense: Reduces what is sent dense.
        loss_scale: Loss scale of the gradients.
        remembers: True if a step remembers the state before it, for `undo`.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        slots: Sequence[Slot],
        settings: Settings,
        *,
        world: World,
        exchange: Exchange,
        host: TorchHost,
        prefix: str,
        messages: Messages,
        rates: LearningRates,
        momentum: Momentum,
        device: torch.device,
    ) -> None:
        self._slots = {slot.name: slot for slot in slots}
        self._settings = settings
        self._size = world.size
        self._exchange = exchange
        self._rates = rates
        self._momentum = momentum
        self._messages = messages
        self.device = device
        self.loss_scale = LossScale(settings.compression.loss_scale)
        self._local = LocalGradient(settings, size=world.size, loss_scale=self.loss_scale)
        self.dense = DenseReducer(
            prefix,
            host=host,
            reduction=settings.reduction,
            messages=messages,
            timeline=exchange.timeline,
        )
        self._stream = StepStream.on(device)
        self._meter = QualityMeter(
            settings.compression,
            messages.add_up,
            size=world.size,
            local_size=exchange.local_size,
        )
        self._growth = ResidualGrowth(world.rank)
        self.remembers = False
        self._was_pending = True
        self._former_rates: dict[str, float] = {}
        self._check_finite = False
        self._used: list[int] = []  # ops, in the order in which parts of this step were completed
        self._stats: tuple[_core.BucketStats, ...] = ()  # of the last step
        sparse = {layer.parameter for layer in layers}
        # A gradient that is always sent dense has an op, too, if it has a velocity.
        self._velocity_only = [
            Layer(slot.name, slot.numel)
            for slot in slots
            if momentum.exists and slot.name not in sparse and slot.optimized
        ]
        self._lay_out(layers)

    def _lay_out(self, layers: Sequence[Layer]) -> None:
        """Lays out ops and their memory for these layers, in this order; all are sent dense."""
        ops = op_gradients_of(layers, self._settings.compression)
        self._layers = list(layers)
        self._sparse_ops = len(ops)
        self._layers_of = [op.layers for op in ops] + [(one,) for one in self._velocity_only]
        self._handovers = self._handovers_of(self._layers_of)
        self._handover_of = {
            slot.name: number for number, one in enumerate(self._handovers) for slot in one.slots
        }
        self._missing = [len(one.slots) for one in self._handovers]
        self.state = ExchangeState(
            ops, self._velocity_only, momentum=self._momentum.exists, device=self.device
        )
        self._buckets = StepBuckets(
            self._exchange,
            ops,
            dense=self._velocity_only,
            compression=self._settings.compression,
            reduction=self._settings.reduction,
            size=self._size,
            device=str(self.device),
            broadcast_order=self._messages.broadcast_order,
        )
        self._steps = Steps(
            self._exchange,
            self._buckets.op_sizes,
            self._buckets.adopt(()),
            _core.StepRules(
                has_velocity=self._momentum.exists,
                masks_velocity=self._momentum.masks,
                measure_every=self._settings.compression.quality_every or 0,
                device=str(self.device),
            ),
        )

    def _handovers_of(self, layers_of: Sequence[Sequence[Layer]]) -> list[Handover]:
        """Joins the ops of a parameter's slices; `layers_of` has the layers of each op."""
        handovers: list[Handover] = []
        for op, layers in enumerate(layers_of):
            slots = [self._slots[layer.parameter] for layer in layers]
            if handovers and handovers[-1].slots == slots:
                handovers[-1] = Handover(slots, range(handovers[-1].ops.start, op + 1))
            else:
                handovers.append(Handover(slots, range(op, op + 1)))
        return handovers

    @property
    def count(self) -> int:
        """Steps so far."""
        return self._steps.count

    @property
    def pending(self) -> bool:
        """True if residuals may be added to dense gradients of the next step; see `Steps`."""
        return self._steps.pending

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
            steps, state = self._steps.count, self.state
            self._buckets.adopt(())  # takes an order of the old ones that is in flight
            self._lay_out(layers)
            self.load(dict(state.residuals()), {}, dict(state.velocities()), step=steps)
            self.state.remember_as(state)
        self._steps.replace(self._buckets.adopt(choices))

    def load(
        self,
        residuals: Mapping[str, torch.Tensor],
        sparsifier_states: Mapping[str, torch.Tensor],
        velocities: Mapping[str, torch.Tensor] | None = None,
        *,
        step: int,
        pending: bool = True,
    ) -> None:
        """Loads another exchange's state, between two steps, on all ranks, each its own values.

        Args:
            residuals: Residuals by parameter, float32, flat; missing ones are zero.
            sparsifier_states: States by unit of selection, float32, [4]; missing ones are zero.
            velocities: Velocities by parameter, float32, flat; missing ones are zero.
            step: Number of steps so far, the same on all ranks.
            pending: The value of `pending` after those steps.
        """
        self.state.load(residuals, sparsifier_states, velocities)
        self._steps.continue_after(step, pending=pending)

    def begin(self) -> None:
        """Begins a step, on the current stream."""
        self._stream.begin()
        self._used.clear()
        momentum, dampening = self._momentum.of_step()
        if self.remembers:
            self._was_pending, self._former_rates = self.pending, self._rates.state()
        self._check_finite = self.state.begin(
            self._steps,
            loss_scale=self.loss_scale.value,
            momentum=momentum,
            dampening=dampening,
            stream=self._stream.number,
        )
        if not self.remembers:
            self.state.forget()
        elif self._check_finite:
            self.state.remember()

    @property
    def can_undo(self) -> bool:
        """True if `undo` can restore the state before the last step."""
        return self.state.remembers or not self._check_finite

    @torch.no_grad()
    def undo(self, names: Container[str]) -> None:
        """Restores the state before the last step, which counts; see `ExchangeState.undo`.

        Args:
            names: The parameters whose part of the step is undone.
        """
        if not self._check_finite:  # nothing was taken
            return
        self.state.undo(names)
        self._rates.load(
            {
                name: self._former_rates.get(name, rate) if name in names else rate
                for name, rate in self._rates.state().items()
            }
        )
        self._steps.continue_after(self.count, pending=self._was_pending or self.pending)

    def arrived(self, slot: Slot) -> None:
        """Takes a complete gradient; sends it once those of its op are there."""
        with self._stream.follow():
            number = self._handover_of.get(slot.name)
            if number is None:
                self._send_dense(slot)
                return
            self._missing[number] -= 1
            if self._missing[number] == 0:
                self._hand_over(self._handovers[number])

    def flush(self, buffer: torch.Tensor) -> None:
        """Sends the dense gradients that have arrived, or lets them wait for more.

        A sparse step has few of them, which are summed together at its end.

        Args:
            buffer: Memory that gradients share; see `DenseReducer.flush`.
        """
        if self._buckets.choices and self.dense.waiting_bytes < _DENSE_BYTES:
            return
        with self._stream.follow():
            self.dense.flush(buffer)

    def launch_missing(self) -> None:
        """Sends all gradients that have not arrived, which count as zero, and all that wait."""
        with self._stream.follow():
            for slot in self._slots.values():
                if slot.name not in self._handover_of and not slot.launched:
                    self._send_dense(slot)
            for handover, missing in zip(self._handovers, self._missing, strict=True):
                if missing:
                    self._hand_over(handover)
            self.dense.flush()

    def wait(self) -> tuple[_core.BucketStats, ...]:
        """Waits until all slots hold their results.

        Returns:
            The statistics of each sparse bucket.

        Raises:
            ExchangeFailedError: The exchange has ended.
        """
        self._stats = self._steps.wait()  # first, since it takes no polling
        self.dense.wait(summed=self._steps.summed if self._check_finite else None)
        self._stream.hand_back()
        return self._stats

    def parts(self) -> list[Part]:
        """Returns the parts of a step, all of whose gradients were launched."""
        parameter_of = {layer.name: layer.parameter for layer in self._layers}
        exchanged = (choice for choice in self._buckets.choices if not choice.dense)
        buckets_of: dict[str, list[int]] = {}
        for choice, bucket in zip(exchanged, self._exchange.buckets, strict=True):
            for name in choice.layers:
                buckets_of.setdefault(parameter_of[name], []).append(bucket)
        parts: dict[object, Part] = {}
        for name, slot in self._slots.items():
            number, buckets = self._handover_of.get(name), buckets_of.get(name, [])
            key = ("bucket", buckets[0]) if buckets else name if number is None else number
            ops: Sequence[int] = ()
            if number is not None and self._check_finite:  # the core takes part
                ops = self._handovers[number].ops
            parts.setdefault(key, Part([], ops, buckets)).slots.append(slot)
        return list(parts.values())

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
            ExchangeFailedError: The exchange has ended.
        """
        if not part.buckets:
            self.dense.wait(
                summed=self._steps.summed if self._check_finite else None, slots=part.slots
            )
        self._used += part.ops
        self._steps.commit_part(part.ops)

    def commit(self) -> None:
        """Commits the step, or raises NonFiniteGradientError; see `Steps.commit`."""
        self._steps.commit()

    def end_step(self) -> None:
        """Ends a committed step; may send or adopt an order of the buckets. Collective."""
        if self._buckets.several:
            order = self._buckets.end_step(self._steps.came, used=self._used, stats=self._stats)
            if order is not None:
                self._steps.reorder(order)
        self._growth.end_step(self.count, self._steps, self._buckets.choices)

    def measured(self, step: int) -> Quality | None:
        """Returns the quality of a committed step; None if it is not measured. Collective."""
        if not self._settings.compression.quality_every:
            return None
        for bucket, accumulated, left, applied in self._steps.samples():
            layout, choice = self._buckets.layout(bucket), self._buckets.choices[bucket]
            self._meter.take(layout, choice, step, accumulated, left, applied)
        return self._meter.of(step)

    def abandon(self) -> None:
        """Gives up the step of an exchange that has ended; returns once no memory is written."""
        self._steps.abandon()

    def release(self) -> None:
        """Prepares for the next step."""
        self._missing = [len(one.slots) for one in self._handovers]
        self.dense.release()
        self.loss_scale.release()

    def _hand_over(self, handover: Handover) -> None:
        slots, ops = handover
        for slot in slots:
            self._local.prepare(slot)
        # A narrow gradient would round its velocity away, and has no residual for the error.
        taken = [slot.take(wide=ops.start >= self._sparse_ops) for slot in slots]
        if self._check_finite:
            decays = self._rates.decays(slots)
            is_dense = False
            for op in ops:
                gradients = [
                    buffer_of(one).part(layer.begin, layer.numel)
                    for one, layer in zip(taken, self._layers_of[op], strict=True)
                ]
                is_dense = self._steps.launch(op, gradients, decays, stream=self._stream.number)
            if not is_dense:
                return
        for slot in slots:
            self.dense.launch(slot)

    def _send_dense(self, slot: Slot) -> None:
        self._local.prepare(slot)
        slot.take()
        self.dense.launch(slot)
