"""Steps that do not wait: the next forward pass waits for each parameter before it uses it.

step() hands over the gradients that are left, and returns. The averages arrive in parts, each a
bucket or a gradient that the host sums, and each part is committed by itself. A group of parts, a
bucket with the small gradients beside it, is applied when one of its parameters is used (see
in_flight.py): the optimizer's own step is run for these parameters alone, with the gradients and
the hyperparameters that it had when step() was called. The numbers are those of one step for all
parameters, since the optimizer treats each by itself.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from hvd_sparse import log
from hvd_sparse.errors import HvdSparseError, NonFiniteGradientError, UnsupportedError
from hvd_sparse.pytorch import guards, in_flight
from hvd_sparse.pytorch.gradient_exchange import Phase
from hvd_sparse.pytorch.handovers import Part
from hvd_sparse.pytorch.host import Link
from hvd_sparse.pytorch.plain_steps import PlainSteps
from hvd_sparse.pytorch.settings import Settings
from hvd_sparse.pytorch.slots import Slot
from hvd_sparse.ranks.world import in_elastic_job

# Optimizers that treat every parameter by itself. A subclass may not.
_OPTIMIZERS = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
)


# The host's sums are applied together up to this size, since each step of an optimizer has a cost.
_GROUP_BYTES = 1 << 20

_Group = list[Part]


class ForwardSteps(PlainSteps):
    """Steps of an optimizer whose step() does not wait."""

    def __init__(self, optimizer: torch.optim.Optimizer, settings: Settings, link: Link) -> None:
        super().__init__(optimizer, settings, link)
        self._group_of: dict[int, _Group] = {}  # by the identity of a parameter in flight
        self._update: _Update | None = None
        self._waited = 0.0  # seconds, in this step
        # Parameters that no forward pass had used when the first gradient of a backward pass came,
        # and PyTorch's number of that pass.
        self._late: tuple[set[str], int] = set(), -1
        self._lock = threading.RLock()  # a program may evaluate on a thread of its own

    def update(self) -> None:
        """Launches the step and returns, unless gradients have to be averages before it."""
        optimizer = self.optimizer()
        if self.phase is Phase.EXCHANGED or _others_look_at_gradients(optimizer):
            if self.phase is Phase.APPLIED:
                self.phase = Phase.IDLE
            super().update()
            return
        with torch.no_grad(), self.ending():
            self.launch()
        self.phase = Phase.APPLYING
        self.steps.remembers = False  # no such step can be thrown away
        self._committed = self.clock.end_step(), False  # it will be, part by part
        with self.momentum.hidden():
            self._update = _Update(optimizer)
        self._waited = 0.0
        self._group_of = _groups(self.steps.parts(), self.slots)
        for slot in self.slots:
            slot.param.grad = None
        self.core.before_close = functools.partial(self.settle, quietly=True)
        in_flight.take_off([slot.param for slot in self.slots], self._land)

    def stepped(self) -> None:
        """Ends the optimizer's step, or leaves its updates in flight."""
        if self.phase is not Phase.APPLYING:
            super().stepped()
            self.phase = Phase.APPLIED

    def stepping(self, *, synchronized: bool) -> None:
        """Called before the optimizer's step; ends what the last one has left in flight."""
        self.settle()
        super().stepping(synchronized=synchronized)

    def lend_averages(self) -> None:
        """Waits for updates in flight; then see `PlainSteps`."""
        self.settle()
        super().lend_averages()

    def synchronize(self) -> None:
        """Waits for the averages; after step(), for its updates. See `PlainSteps`."""
        self.settle()
        if self.phase is not Phase.APPLIED:
            super().synchronize()

    def refuse_if_busy(self, reason: str) -> None:
        """Waits for updates in flight; then see `PlainSteps`."""
        self.settle()
        super().refuse_if_busy(reason)

    def forget_gradients(self, reason: str) -> None:
        """Does nothing while updates are in flight: step() has taken their gradients away."""
        if self.phase is not Phase.APPLYING:
            super().forget_gradients(reason)

    def arrived(self, slot: Slot) -> None:
        """Accepts a gradient; the first one of a step ends the last one."""
        backward = torch._C._current_graph_task_id()
        if self.phase is Phase.APPLYING:
            late = {one.name for one in self.slots if id(one.param) in self._group_of}
            self._late = late, backward
            self.settle()
        if backward >= 0 and self._late[1] == backward and slot.name in self._late[0]:
            raise self.end(
                UnsupportedError(
                    f"the gradient of '{slot.name}' was computed with a weight whose update was "
                    "still in flight: what used it (TorchScript, an extension in C++, a view made "
                    "before step()) is not seen by PyTorch's functions. Leave "
                    "wait_in_forward at False"
                )
            )
        super().arrived(slot)

    def settle(self, *, quietly: bool = False) -> None:
        """Waits for all updates in flight and applies them.

        Args:
            quietly: True to log what is refused, where no script expects an error.

        Raises:
            NonFiniteGradientError: No rank applies some of them; the others are applied.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        refused = None
        try:
            with self._lock:
                while self._group_of:
                    try:
                        self._apply(next(iter(self._group_of.values())))
                    except NonFiniteGradientError as error:
                        refused = refused or error
            if refused is not None:
                raise refused
        except HvdSparseError as error:
            if not quietly:
                raise
            if isinstance(error, NonFiniteGradientError):  # the next use raises any other
                with suppress(Exception):  # from the program's own log handler
                    log.logger.warning("in the last step: %s", error)

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks; updates that have not been applied are dropped."""
        super().fail(reason)
        if self.phase is Phase.APPLYING:
            in_flight.landed(slot.param for slot in self.slots)
            self._group_of.clear()
            self._committed = None
            self._end_flight()

    def _land(self, param: torch.Tensor) -> None:
        """Applies the update of a parameter that is about to be used."""
        guards.check_not_capturing(param.device)
        if self.core.inherited:
            raise UnsupportedError(
                "a process that was forked while updates were in flight uses a parameter: call "
                "optimizer.synchronize() before"
            )
        with self._lock:
            group = self._group_of.get(id(param))
            if group is not None:
                self._apply(group)

    def _apply(self, group: _Group) -> None:
        """Waits for a group, commits its parts and applies them; the last one ends the step."""
        assert self._update is not None
        params = [slot.param for part in group for slot in part.slots]
        refused, applied = None, []
        start = time.perf_counter()
        outside = _outside_of_forward(self.steps.device)
        with self.ending(), outside, self.steps.on_its_stream():
            with self.clock.waiting():
                for part in group:
                    try:
                        self.steps.complete(part)
                    except NonFiniteGradientError as error:
                        refused = refused or error
                    else:
                        applied += part.slots
            self._waited += time.perf_counter() - start
            for slot in applied:
                slot.write_back()
            self._update.apply(applied)
        for param in params:
            del self._group_of[id(param)]
        in_flight.landed(params)
        if not self._group_of:
            self._finish_flight()
        if refused is not None:
            raise refused

    def _finish_flight(self) -> None:
        """Ends a step all of whose parts were committed."""
        with _outside_of_forward(self.steps.device):
            with self.ending():
                self.wait(since=time.perf_counter() - self._waited)
                self.steps.commit()
            self.end_step()
        self._end_flight()

    def _end_flight(self) -> None:
        self._update = self.core.before_close = None
        self.release()
        self.phase = Phase.APPLIED


def _groups(parts: Iterable[Part], slots: Iterable[Slot]) -> dict[int, _Group]:
    """Returns the group of each parameter, by identity, in the order in which they are registered.

    A gradient that the host sums joins the group of the parameter that is registered before it.
    """
    part_of = {id(slot.param): part for part in parts for slot in part.slots}
    group_of_part: dict[int, _Group] = {}
    groups: dict[int, _Group] = {}
    group: _Group = []
    size = _GROUP_BYTES
    for slot in slots:
        part = part_of[id(slot.param)]
        if id(part) in group_of_part:
            group = group_of_part[id(part)]
        elif part.buckets:
            group, size = [part], 0
        elif size + slot.nbytes > _GROUP_BYTES:
            group, size = [part], slot.nbytes
        else:
            group.append(part)
            size += slot.nbytes
        group_of_part[id(part)] = groups[id(slot.param)] = group
    return groups


class _Update:
    """The update that an optimizer's step() would have made when it was called.

    It keeps the optimizer alive, and the hyperparameters of that time.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = [
            {name: _copy(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        self._group_of = {
            id(param): number
            for number, group in enumerate(optimizer.param_groups)
            for param in group["params"]
        }

    def apply(self, slots: Iterable[Slot]) -> None:
        """Updates the parameters of some slots, with the results that these hold."""
        optimizer = self._optimizer
        params: dict[int, list[torch.Tensor]] = {}
        with ExitStack() as stack:
            for slot in slots:
                number = self._group_of.get(id(slot.param))
                if number is not None:
                    stack.enter_context(slot.lent())
                    params.setdefault(number, []).append(slot.param)
            kept = optimizer.param_groups
            optimizer.param_groups = [
                {**self._groups[number], "params": some} for number, some in params.items()
            ]
            try:
                _step_of(optimizer)(optimizer)
            finally:
                optimizer.param_groups = kept


@contextmanager
def _outside_of_forward(device: torch.device) -> Iterator[None]:
    """Runs a part of a step as if outside of the forward pass that waits for it.

    The forward pass may be an evaluation in inference mode, whose tensors no step could update.
    """
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
        torch._C.DisableTorchFunction(),
    ):
        yield


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _step_of(optimizer: torch.optim.Optimizer) -> Any:
    """Returns the step of an optimizer's class without PyTorch's hooks; see hooks.py."""
    step = type(optimizer).step
    return getattr(step, "__wrapped__", step) if hasattr(step, "hooked") else step


def _others_look_at_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Returns true if others' hooks run before the step: they expect averages."""
    ours = 1  # see hooks.run_first
    everyone = torch_optimizer._global_optimizer_pre_hooks
    return len(everyone) > ours or bool(optimizer._optimizer_step_pre_hooks)


def check_forward(settings: Settings, optimizer: torch.optim.Optimizer) -> None:
    """Raises UnsupportedError for what wait_in_forward cannot do, before anything is sent."""
    if not settings.waits_in_forward:
        return
    what = "wait_in_forward"
    if in_elastic_job():
        raise UnsupportedError(
            f"{what} cannot be used in an elastic job: ranks that leave would have applied one "
            "half of a step, and those that stay another"
        )
    if type(optimizer) not in _OPTIMIZERS:
        names = ", ".join(one.__name__ for one in _OPTIMIZERS)
        raise UnsupportedError(
            f"{what} applies a step in parts, and takes optimizers that are known to treat every "
            f"parameter by itself ({names}), got {type(optimizer).__name__}"
        )
    if optimizer.defaults.get("differentiable"):
        raise UnsupportedError(f"{what} cannot be used with differentiable=True")
    for name, param in settings.named:
        in_flight.check_class(name, param)
