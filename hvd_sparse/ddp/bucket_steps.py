"""The exchange of gradients that DistributedDataParallel hands over bucket by bucket.

DDP gathers gradients in buckets of its own, and calls a communication hook for each once it is
complete, in one order on all ranks. Such a bucket only delivers: the exchange takes its gradients
one by one, and starts what the plan has put together. The hook of DDP's last bucket waits for
everything, and commits; then DDP copies the results out of its buckets. So a step of the exchange
begins and ends within one loss.backward().
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.errors import HvdSparseError, NonFiniteGradientError
from hvd_sparse.pytorch.backward_steps import BackwardSteps
from hvd_sparse.pytorch.gradient_exchange import Phase
from hvd_sparse.pytorch.host import Link
from hvd_sparse.pytorch.renewal import Renewal
from hvd_sparse.pytorch.settings import Settings
from hvd_sparse.pytorch.slots import DeliveredSlot

BucketFuture = Future[torch.Tensor]


class BucketSteps(BackwardSteps):
    """Steps with the gradients of one DDP module, which are averages after loss.backward()."""

    slot_type = DeliveredSlot
    incomplete = (
        ", or that did not compute a gradient for every parameter: DistributedDataParallel waits "
        "for the rest"
    )
    last_pass = "outside of no_sync(), with a gradient for every parameter"

    def __init__(self, optimizer: torch.optim.Optimizer, settings: Settings, link: Link) -> None:
        super().__init__(optimizer, settings, link)
        self._slot_of = {id(slot.param): slot for slot in self.slots}

    def before_forward(self) -> None:
        """Watches gradients from now on, if a forward pass follows a step that was not applied."""
        if self.phase is Phase.EXCHANGED:
            self.watch()

    def deliver(self, bucket: GradBucket) -> None:
        """Takes the gradients of a bucket, and starts what is complete with them."""
        buffer = bucket.buffer()
        for param, view in zip(bucket.parameters(), bucket.gradients(), strict=True):
            slot = self._slot_of.get(id(param))
            if slot is not None:  # one without elements has none
                assert isinstance(slot, DeliveredSlot)
                slot.delivered = view
                self.arrived(slot)
        with torch.no_grad(), self.ending():
            self.steps.flush(buffer)

    @torch.no_grad()
    def divide_by_present(self, *, present: bool) -> None:
        """Makes averages over all ranks averages over those that have data. Collective.

        Args:
            present: True if this rank has.
        """
        rows = self.core.gather([present], what="counting the ranks that have data")
        factor = len(rows) / sum(row[0] for row in rows)
        for slot in self.slots if self.averages else ():
            slot.gradient().mul_(factor)

    @torch.no_grad()
    def write_unused(self) -> None:
        """Writes what was delivered for parameters that no rank has used: DDP leaves them alone."""
        for slot in self.slots:
            delivered, grad = slot.gradient(), slot.param.grad
            if grad is not None:
                grad.copy_(delivered)
            elif delivered.any():
                slot.param.grad = delivered.clone()


class Deliveries:
    """The hooks of an exchange on one DDP module: before its forward pass, and for its buckets.

    Copies of the module, and what is pickled of it, have no exchange: DDP gives them no hook.

    Args:
        renewal: Holds the exchange, for as long as its optimizer lives.
        ddp: The module.
    """

    def __init__(self, renewal: Renewal, ddp: DistributedDataParallel) -> None:
        self._renewal = weakref.ref(renewal)
        self._ddp = weakref.ref(ddp)
        self._waiting: list[tuple[BucketFuture, torch.Tensor]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_deliveries, ()

    def __call__(self, *_: Any) -> None:
        """Called before the module's forward pass."""
        steps = self._steps()
        if steps is not None:
            steps.before_forward()

    # DDP asks for a parameter of this name, and compares annotations with classes.
    def deliver(self, bucket):  # type: ignore[no-untyped-def]
        """Takes a bucket; with the last one, ends the step. The communication hook.

        Returns:
            A future of the bucket's memory, with the averages.
        """
        steps = self._steps()
        if steps is None:
            raise HvdSparseError(
                "the optimizer that was attached to this DistributedDataParallel no longer "
                "exists, or its exchange was never built: wrap the module again"
            )
        buffer = bucket.buffer()
        future = future_of(buffer)
        if bucket.index() == 0:
            self._waiting.clear()  # of a backward pass that failed
        steps.deliver(bucket)
        self._waiting.append((future, buffer))
        if bucket.is_last():
            refused = self._complete(steps)
            waiting, self._waiting = self._waiting, []
            for one, result in waiting:
                one.set_result(result)
            self._after_ddp(steps, refused)
        return future

    def _complete(self, steps: BucketSteps) -> NonFiniteGradientError | None:
        refused = None
        try:
            steps.complete()
        except NonFiniteGradientError as error:  # no rank applies the step, and buckets hold zeros
            refused = error
        ddp = self._ddp()
        assert ddp is not None
        if refused is None and ddp._join_config.enable and not ddp._divide_by_initial_world_size:
            steps.divide_by_present(present=in_backward())
        return refused

    def _after_ddp(self, steps: BucketSteps, refused: NonFiniteGradientError | None) -> None:
        """Ends the step, or raises its error, once DDP has ended its own, and can go on.

        DDP queues its end after the hook of the last bucket, so what that queues comes first, and
        what this in turn queues comes last.
        """
        if not in_backward():  # DDP's join() takes this step for a rank that has run out of data
            if refused is not None:
                raise refused
            steps.release()
            return

        def at_the_end() -> None:
            if refused is not None:
                raise refused
            ddp = self._ddp()
            if ddp is not None and ddp.find_unused_parameters and not ddp.static_graph:
                steps.write_unused()
            steps.note_average()

        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: engine.queue_callback(at_the_end))

    def _steps(self) -> BucketSteps | None:
        renewal = self._renewal()
        steps = None if renewal is None else renewal.exchange
        assert steps is None or isinstance(steps, BucketSteps)
        return steps


def _no_deliveries() -> Deliveries | None:
    return None


def future_of(buffer: torch.Tensor) -> BucketFuture:
    """Returns a future for what a hook makes of a bucket's memory."""
    return Future() if buffer.device.type == "cpu" else Future(devices=[buffer.device])


def in_backward() -> bool:
    """Returns true within backward; DDP's join() calls hooks outside, without data."""
    return bool(torch._C._current_graph_task_id() >= 0)
