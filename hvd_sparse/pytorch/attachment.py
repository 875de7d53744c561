"""Attaches an exchange to an optimizer: hooks on its step and its state, and Horovod's methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.pytorch import state, step_hooks
from hvd_sparse.pytorch.gradient_exchange import GradientExchange
from hvd_sparse.pytorch.opaque import opaque
from hvd_sparse.pytorch.owner import weakly
from hvd_sparse.pytorch.renewal import Renewal
from hvd_sparse.pytorch.settings import checked_passes
from hvd_sparse.pytorch.step_way import StepWay


class Attachment:
    """The hooks on an optimizer, and the methods that Horovod's users call.

    Args:
        optimizer: The user's optimizer.
        renewal: Builds and holds the exchange of its gradients.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, renewal: Renewal) -> None:
        self.renewal = renewal
        self._owner = weakly(optimizer)
        self._should_synchronize = True
        self._paused = False
        self._restoring = False
        self._loading: dict[str, Any] | None = None
        self._loss = state.LossNote()
        self._replaced_zero_grad: Callable[..., None] | None = vars(optimizer).get("zero_grad")

        step_hooks.run_first()
        step_hooks.surround(optimizer)
        optimizer.register_step_post_hook(step_hooks.after_hook())
        optimizer.register_state_dict_pre_hook(self._before_save)
        optimizer.register_state_dict_post_hook(self._save)
        optimizer.register_load_state_dict_pre_hook(self._check_load)
        optimizer.register_load_state_dict_post_hook(self._load)
        setattr(optimizer, step_hooks.ATTRIBUTE, self)
        optimizer.zero_grad = opaque(self.zero_grad)  # type: ignore[method-assign]

    def add_methods(self, passes: int) -> None:
        """Adds the methods that Horovod gives a DistributedOptimizer.

        Args:
            passes: Backward passes per step.
        """
        optimizer = self._owner()
        for method in (self.synchronize, self.skip_synchronize, self.set_backward_passes_per_step):
            setattr(optimizer, method.__name__, opaque(method))
        optimizer.backward_passes_per_step = passes  # type: ignore[attr-defined]

    @property
    def way(self) -> StepWay | None:
        """The way of taking steps; None if this rank exchanges nothing, or until it is built."""
        return self.renewal.way

    @property
    def exchange(self) -> GradientExchange | None:
        """The exchange of the gradients; None if `way` is None."""
        return None if self.way is None else self.way.exchange

    def synchronize(self) -> None:
        """Waits until every gradient is the average over the ranks; for clipping before step().

        Raises:
            NonFiniteGradientError: On every rank, if a gradient is not finite on one. All gradients
                are then zero and nothing is lost; the next step is normal.
            GradientInFlightError: A gradient was changed after backward. The exchange has ended.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        self.renewal.renew()
        if self.way is not None:
            self.way.lend_averages()
            self.way.synchronize()

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Returns a context in which step() does not synchronize; for use after synchronize()."""
        if self.way is not None:
            self.way.lend_averages()
        return self._not_synchronizing()

    @contextmanager
    def _not_synchronizing(self) -> Iterator[None]:
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Like the optimizer's own, but refused, on all ranks, between backward and synchronize().

        Raises:
            GradientInFlightError: Gradients have arrived but are not exchanged yet.
        """
        if self.way is not None and not self._paused:
            self.way.forget_gradients(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(). This is prohibited as it can cause a "
                "race condition."
            )
        options = {} if set_to_none is None else {"set_to_none": set_to_none}
        if self._replaced_zero_grad is not None:
            self._replaced_zero_grad(**options)
        else:
            optimizer = self._owner()
            type(optimizer).zero_grad(optimizer, **options)

    def reset_residual(self, state_dict: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Empties this rank's residuals; see `TorchExchange.reset_residual`."""
        if self.exchange is not None:
            self.refuse_if_busy("reset_residual()")
            self.exchange.state.reset()
        if self.renewal.pending:
            self.renewal.hold(None)
        return None if state_dict is None else state.reset(self.way, state_dict)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward passes add up to one step's gradient.

        Raises:
            InvalidArgumentError: `passes` is not a positive integer.
        """
        checked_passes(passes)
        if self.exchange is not None:
            self.refuse_if_busy("set_backward_passes_per_step()")
            self.exchange.set_passes(passes)
        self._owner().backward_passes_per_step = passes  # type: ignore[attr-defined]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Suspends the attachment within the context: it exchanges, saves and loads nothing."""
        exchange = self.exchange
        if exchange is not None:
            self.refuse_if_busy("hvd.broadcast_optimizer_state()")
            exchange.paused = True
        self._paused = True
        try:
            yield
        finally:
            self._paused = False
            if exchange is not None:
                exchange.paused = False

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Ends the exchange; state that is loaded within the context waits for the next one."""
        self.renewal.give_up()
        self._restoring = True
        try:
            yield
        finally:
            self._restoring = False

    def undo_unfinished(self) -> None:
        """Undoes a step that the optimizer has not taken, before another exchange succeeds this."""
        if self.way is not None:
            self.way.undo_unfinished()
            self.way.exchange.momentum.show()

    def refuse_if_busy(self, what: str) -> None:
        """Ends the exchange if a call comes between backward() and the exchange of its gradients.

        Args:
            what: The call, for the message.

        Raises:
            GradientInFlightError: There are such gradients; other ranks get an ExchangeFailedError.
        """
        assert self.way is not None
        self.way.refuse_if_busy(
            f"{what} was called after loss.backward() but before optimizer.step() or "
            "optimizer.synchronize()"
        )

    def before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Synchronizes before step(), or makes its closure do so.

        Args:
            args: Positional arguments of step(): the optimizer, and perhaps the closure.
            kwargs: Keyword arguments of step().

        Returns:
            The new args and kwargs, or None to keep these.
        """
        if self._paused:
            return None
        self.renewal.renew()
        way = self.way
        if way is None:
            return None
        way.stepping(synchronized=not self._should_synchronize)
        if not self._should_synchronize:
            way.exchange.momentum.hide()
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            way.update()
            return None
        closure = _exchanging(closure, way)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": closure}
        return (args[0], closure, *args[2:]), kwargs

    def after_step(self) -> None:
        """Ends the step, as `StepWay.stepped` does."""
        if self.way is not None and not self._paused:
            self.way.exchange.momentum.show()
            self.way.stepped()

    def _before_save(self, _: Any) -> None:
        if self.way is None:
            return
        if not self._paused:
            self.way.settle()
        self.way.exchange.momentum.show()  # a failed step leaves it hidden

    def _save(self, _: Any, state_dict: dict[str, Any]) -> None:
        if self._paused:
            return
        held = self.renewal.held if self.way is None else state.save(self.way)
        if held is not None:
            state_dict[state.KEY] = held
            self._loss.warn()
        if self.exchange is not None:
            state.put_velocities_into(self.exchange, state_dict)

    def _check_load(self, _: Any, state_dict: dict[str, Any]) -> dict[str, Any] | None:
        if self._paused:
            return None
        if self.exchange is not None:
            self.refuse_if_busy("load_state_dict()")
        self._loading = state_dict.get(state.KEY)
        if self.exchange is not None and self._loading is None:
            self._loss.warn()
        if not self.renewal.pending:
            state.check(self.way, self._loading)
        elif not self._restoring:
            self.renewal.check_place(self._loading)
        return state.without_residuals(state_dict)

    def _load(self, _: Any) -> None:
        if self.way is not None and not self._paused:
            state.load(self.way, self._loading)
            self.way.exchange.release()
        elif self.renewal.pending and not self._paused:
            self.renewal.hold(self._loading)
        self._loading = None


def _exchanging(closure: Callable[[], Any], way: StepWay) -> Callable[[], Any]:
    def closure_and_exchange() -> Any:
        loss = closure()
        way.synchronize()
        way.exchange.momentum.hide()
        return loss

    return closure_and_exchange


def attachment_of(optimizer: object) -> Attachment | None:
    """Returns an optimizer's attachment; None if it has no sparse compression."""
    attachment = getattr(optimizer, step_hooks.ATTRIBUTE, None)
    return attachment if isinstance(attachment, Attachment) else None


def require_attachment(optimizer: object) -> Attachment:
    """Returns an optimizer's attachment; raises InvalidArgumentError if it has none."""
    attachment = attachment_of(optimizer)
    if attachment is None:
        raise InvalidArgumentError(
            f"{type(optimizer).__name__} has no sparse compression: it does not come from "
            "hvd.DistributedOptimizer with one, nor was it given to hvd_sparse.ddp.attach"
        )
    return attachment
