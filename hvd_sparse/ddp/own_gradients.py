"""The gradients of a DistributedDataParallel module whose ranks take local steps.

The communication hook leaves each rank its own gradients, except those of parameters that the
attached optimizer does not update: DDP promises their averages to other optimizers. Within DDP's
join(), a rank that has run out of data counts the local steps of the others, and comes to their
meetings; at the end of join() all ranks meet, before DDP gives all of them one rank's weights.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.join import JoinHook
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.ddp.bucket_steps import BucketFuture, future_of, in_backward
from hvd_sparse.errors import HvdSparseError, UnsupportedError
from hvd_sparse.exchange.reduction import Reduction
from hvd_sparse.pytorch.local_steps import LocalSteps
from hvd_sparse.pytorch.parameters import NamedParameters
from hvd_sparse.pytorch.renewal import Renewal
from hvd_sparse.pytorch.slots import DeliveredSlot


def keep_own_gradients(
    ddp: DistributedDataParallel,
    renewal: Renewal,
    steps: LocalSteps,
    named: NamedParameters,
    reduction: Reduction,
) -> None:
    """Registers the communication hook for local steps, and lets them follow join().

    Args:
        ddp: The module.
        renewal: Holds `steps`, for as long as their optimizer lives.
        steps: The local steps of the attached optimizer.
        named: The parameters whose gradients DDP gathers.
        reduction: The reduction of gradients that the optimizer does not update.
    """
    others = _others(named, steps)
    joins = Joins(ddp, renewal)
    steps.joining = joins
    ddp.join_hook = joins  # type: ignore[method-assign]
    if not others and ddp.mixed_precision is None:
        joins.rest()
        weakref.finalize(steps, joins.wake).atexit = False
    state = OwnGradients(renewal, joins, others, reduction)
    ddp.register_comm_hook(state, OwnGradients.deliver)


def _others(named: NamedParameters, steps: LocalSteps) -> list[DeliveredSlot]:
    """Returns slots for the parameters that the attached optimizer does not update."""
    updated = {id(param) for param in steps.parameters.values()}
    return [
        DeliveredSlot(name, param, 1)
        for name, param in named
        if id(param) not in updated and param.numel() > 0
    ]


class Joins:
    """The `join_hook` of a DDP module whose ranks take local steps; a `Joining`.

    A copy of the module has no exchange, and joins as it does without.

    Args:
        ddp: The module.
        renewal: Holds the local steps, for as long as their optimizer lives; None in copies.
    """

    def __init__(self, ddp: DistributedDataParallel, renewal: Renewal | None = None) -> None:
        self._ddp = weakref.ref(ddp)
        self._rests = False
        self._renewal = None if renewal is None else weakref.ref(renewal)
        self._has_begun = False
        self._passes = 0

    def __getstate__(self) -> DistributedDataParallel | None:
        return self._ddp()

    def __setstate__(self, ddp: DistributedDataParallel) -> None:
        self.__init__(ddp)  # type: ignore[misc]

    def __call__(self, **options: Any) -> JoinHook:
        """Called by join(), as DistributedDataParallel.join_hook."""
        ddp = self._ddp()
        assert ddp is not None
        if self._renewal is not None and not options.get("divide_by_initial_world_size", True):
            raise UnsupportedError(
                "divide_by_initial_world_size must be True with local_steps, where a meeting "
                "averages the weights of all ranks, got False"
            )
        hook: JoinHook = type(ddp).join_hook(ddp, **options)  # type: ignore[no-untyped-call]
        if self._renewal is None:
            return hook
        self._has_begun, self._passes = True, 0
        self.wake()
        return _MeetingAtTheEnd(hook, self)

    def rest(self) -> None:
        """Lets DDP gather no gradients, as within no_sync(), but within join()."""
        self._rests = True
        ddp = self._ddp()
        if ddp is not None:
            ddp.require_backward_grad_sync = _NotHere()  # type: ignore[assignment]

    def wake(self) -> None:
        """Lets DDP gather gradients."""
        ddp = self._ddp()
        if ddp is not None:
            ddp.require_backward_grad_sync = True

    def passed(self) -> None:
        """Counts a backward pass, whose gradients DDP has handed out."""
        self._passes += 1

    def ended(self) -> None:
        """Meets at the end of join(), unless the ranks have just met."""
        self._has_begun = False
        if self._rests:
            self.rest()
        steps = None if self._renewal is None else steps_of(self._renewal)
        if steps is not None:
            steps.meet()

    def check_step(self) -> None:
        """Raises UnsupportedError if a rank without data cannot count the step just taken."""
        passes, self._passes = self._passes, 0
        if self._is_on() and passes != 1:
            raise UnsupportedError(
                "with local_steps within join(), a rank without data counts the others' steps by "
                "their backward passes: each optimizer.step() needs one loss.backward() outside "
                f"of no_sync(), and there were {passes}"
            )

    def check_meeting(self) -> None:
        """Raises UnsupportedError if a rank without data would not come to an early meeting."""
        if self._is_on():
            raise UnsupportedError(
                "meet() was called within join(), where a rank without data does not call it: the "
                "ranks meet at the end of join()"
            )

    def _is_on(self) -> bool:
        ddp = self._ddp()
        return self._has_begun and ddp is not None and ddp._join_config.enable


class _MeetingAtTheEnd(JoinHook):
    """DDP's own hook for join(); before it sends one rank's weights to all, the ranks meet."""

    def __init__(self, hook: JoinHook, joins: Joins) -> None:
        self._hook, self._joins = hook, joins

    def main_hook(self) -> None:
        """Follows a step of the ranks that have data."""
        self._hook.main_hook()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Ends join()."""
        self._joins.ended()
        self._hook.post_hook(is_last_joiner)


class OwnGradients:
    """The state of the communication hook on one DDP module.

    Copies of the module, and what is pickled of it, have no exchange: DDP gives them no hook.

    Args:
        renewal: Holds the local steps, for as long as their optimizer lives.
        joins: Counts backward passes.
        others: Slots of the parameters whose gradients are averaged.
        reduction: Their reduction over the ranks.
    """

    def __init__(
        self,
        renewal: Renewal,
        joins: Joins,
        others: Iterable[DeliveredSlot],
        reduction: Reduction,
    ) -> None:
        steps = steps_of(weakref.ref(renewal))
        assert steps is not None
        self._renewal = weakref.ref(renewal)
        self._joins = joins
        self._others = {id(slot.param): slot for slot in others}
        self._sums = steps.sums(reduction)
        self._waiting: list[tuple[BucketFuture, torch.Tensor]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_gradients, ()

    # DDP asks for a parameter of this name, and compares annotations with classes.
    def deliver(self, bucket):  # type: ignore[no-untyped-def]
        """Takes a bucket; with the last one, waits for the averages of others' gradients.

        Returns:
            A future of the bucket's memory.
        """
        steps = steps_of(self._renewal)
        if steps is None:
            raise HvdSparseError(
                "the optimizer that was attached to this DistributedDataParallel no longer exists: "
                "wrap the module again"
            )
        if bucket.index() == 0:
            self._release()  # of a backward pass that failed
        buffer, future = bucket.buffer(), future_of(bucket.buffer())
        self._waiting.append((future, buffer))
        with torch.no_grad(), steps.ending():
            self._send(bucket)
            if bucket.is_last():
                self._sums.wait()
        if bucket.is_last():
            self._hand_out()
            if in_backward():
                self._joins.passed()
            else:
                steps.follow()
        return future

    def _send(self, bucket: GradBucket) -> None:
        for param, view in zip(bucket.parameters(), bucket.gradients(), strict=True):
            slot = self._others.get(id(param))
            if slot is not None:
                slot.delivered = view
                slot.take()
                self._sums.launch(slot)
        self._sums.flush(bucket.buffer())

    def _hand_out(self) -> None:
        for slot in self._others.values():
            if slot.launched:
                slot.write_back()
        waiting = self._waiting
        self._release()
        for future, buffer in waiting:
            future.set_result(buffer)

    def _release(self) -> None:
        self._waiting = []
        self._sums.release()
        for slot in self._others.values():
            slot.release(1)
            slot.delivered = None


class _NotHere:
    """Is false, and its copies are true: a copy of the module has no local steps."""

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, (True,)


def _no_gradients() -> None:
    return None


def steps_of(renewal: weakref.ref[Renewal]) -> LocalSteps | None:
    """Returns the local steps that a renewal holds; None once their optimizer is gone."""
    alive = renewal()
    steps = None if alive is None else alive.exchange
    assert steps is None or isinstance(steps, LocalSteps)
    return steps
