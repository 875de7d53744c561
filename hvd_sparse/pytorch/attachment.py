"""Attaches an exchange to an optimizer: hooks on its step and its state, and Horovod's methods."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.pytorch import hooks, state
from hvd_sparse.pytorch.gradient_exchange import GradientExchange
from hvd_sparse.pytorch.parameters import weakly
from hvd_sparse.pytorch.renewal import Renewal
from hvd_sparse.pytorch.settings import checked_passes

_WITHOUT = "To go on, leave the residuals out of what is loaded (what was not sent yet is lost)"


class _Mode(enum.Enum):
    """What the calls of an optimizer mean."""

    USUAL = "its gradients are exchanged"
    SYNCHRONIZED = "step() does not exchange them, since the user has called synchronize()"
    PAUSED = "nothing is exchanged, saved or loaded"
    RESTORING = "what is loaded waits for the next exchange"


class Attachment:
    """The hooks on an optimizer, and the methods that Horovod's users call.

    Args:
        optimizer: The user's optimizer.
        renewal: Builds and holds the exchange of its gradients.

    Attributes:
        loss_note: Warns of state dicts without residuals.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, renewal: Renewal) -> None:
        self.renewal = renewal
        self._owner = weakly(optimizer)
        self._mode = _Mode.USUAL
        self._stepping = ExitStack()  # the optimizer steps within, and its momentum is hidden
        self._loading: dict[str, Any] | None = None
        self._apart: dict[str, Any] | None = None  # loaded since the last step; see load_apart()
        self.loss_note = state.LossNote()
        self._replaced_zero_grad: Callable[..., None] | None = vars(optimizer).get("zero_grad")

        hooks.run_first()
        hooks.surround(optimizer)
        optimizer.register_step_post_hook(hooks.after_hook())
        optimizer.register_state_dict_pre_hook(self._before_save)
        optimizer.register_state_dict_post_hook(self._save)
        optimizer.register_load_state_dict_pre_hook(self._check_load)
        optimizer.register_load_state_dict_post_hook(self._load)
        setattr(optimizer, hooks.ATTRIBUTE, self)
        optimizer.zero_grad = hooks.opaque(self.zero_grad)  # type: ignore[method-assign]

    def add_methods(self, passes: int) -> None:
        """Adds the methods that Horovod gives a DistributedOptimizer.

        Args:
            passes: Backward passes per step.
        """
        optimizer = self._owner()
        for method in (self.synchronize, self.skip_synchronize, self.set_backward_passes_per_step):
            setattr(optimizer, method.__name__, hooks.opaque(method))
        optimizer.backward_passes_per_step = passes  # type: ignore[attr-defined]

    @property
    def exchange(self) -> GradientExchange | None:
        """The exchange of the gradients; None if this rank has none, or until it is built."""
        return self.renewal.exchange

    def synchronize(self) -> None:
        """Waits until every gradient is the average over the ranks; for clipping before step().

        Raises:
            NonFiniteGradientError: On every rank, if a gradient is not finite on one. All gradients
                are then zero and nothing is lost; the next step is normal.
            GradientInFlightError: A gradient was changed after backward. The exchange has ended.
            ExchangeFailedError: Another rank ended the exchange, or died.
        """
        self.renewal.renew()
        if self.exchange is not None:
            self.exchange.lend_averages()
            self.exchange.synchronize()

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Returns a context in which step() does not synchronize; for use after synchronize()."""
        if self.exchange is not None:
            self.exchange.lend_averages()
        return self._in(_Mode.SYNCHRONIZED)

    @contextmanager
    def _in(self, mode: _Mode) -> Iterator[None]:
        former, self._mode = self._mode, mode
        try:
            yield
        finally:
            self._mode = former

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Like the optimizer's own, but refused, on all ranks, between backward and synchronize().

        Raises:
            GradientInFlightError: Gradients have arrived but are not exchanged yet.
        """
        if self._active is not None:
            self._active.forget_gradients(
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
            self.exchange.steps.state.reset()
        if self.renewal.pending:
            self.renewal.hold(None)
        return None if state_dict is None else state.reset(self.exchange, state_dict)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward passes add up to one step's gradient.

        Raises:
            InvalidArgumentError: `passes` is not a positive integer.
        """
        checked_passes(passes)
        if self.exchange is not None:
            self.refuse_if_busy("set_backward_passes_per_step()")
            self.exchange.passes = passes
            self.exchange.release()
        self._owner().backward_passes_per_step = passes  # type: ignore[attr-defined]

    def paused(self) -> AbstractContextManager[None]:
        """Returns a context in which the attachment exchanges, saves and loads nothing."""
        if self.exchange is not None:
            self.refuse_if_busy("hvd.broadcast_optimizer_state()")
        return self._in(_Mode.PAUSED)

    def restoring(self) -> AbstractContextManager[None]:
        """Ends the exchange; state that is loaded in the context waits for the next one."""
        self.renewal.give_up()
        return self._in(_Mode.RESTORING)

    def undo_unfinished(self) -> None:
        """Undoes a step that the optimizer has not taken, before another exchange succeeds this."""
        if self.exchange is not None:
            self.exchange.undo_unfinished()
        self._stepping.close()

    def refuse_if_busy(self, what: str) -> None:
        """Ends the exchange if a call comes between backward() and the exchange of its gradients.

        Args:
            what: The call, for the message.

        Raises:
            GradientInFlightError: There are such gradients; other ranks get an ExchangeFailedError.
        """
        assert self.exchange is not None
        self.exchange.refuse_if_busy(
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
        if self._mode is _Mode.PAUSED:
            return None
        self.renewal.renew()
        exchange = self.exchange
        if exchange is None:
            return None
        self._stepping.close()  # a failed step leaves it open
        self._apart = None
        self.loss_note.step()
        synchronized = self._mode is _Mode.SYNCHRONIZED
        exchange.stepping(synchronized=synchronized)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if synchronized or not callable(closure):
            if not synchronized:
                exchange.update()
            self._stepping.enter_context(exchange.within_step())
            return None

        def closure_and_exchange() -> Any:
            loss = closure()
            exchange.synchronize()
            self._stepping.close()  # an optimizer may call its closure again
            self._stepping.enter_context(exchange.within_step())
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": closure_and_exchange}
        return (args[0], closure_and_exchange, *args[2:]), kwargs

    def after_step(self) -> None:
        """Ends the step, as `GradientExchange.stepped` does."""
        if self._active is not None:
            self._stepping.close()
            self._active.stepped()

    def apart(self) -> GradientExchange | None:
        """Returns the exchange, to save or to load its state without the optimizer's."""
        if self.exchange is not None:
            self.refuse_if_busy("saving or loading an exchange")
            self.exchange.settle()
        self.loss_note.settle()
        return self.exchange

    def load_apart(self, saved: dict[str, Any]) -> None:
        """Loads an exchange's state that was saved without the optimizer's.

        The optimizer's own may be loaded after it.

        Raises:
            CheckpointMismatchError: It does not fit. Nothing has changed.
        """
        assert self.exchange is not None
        state.check(self.exchange, saved, advice=_WITHOUT)
        self._apart = saved
        state.load(self.exchange, saved)
        self.exchange.release()

    @property
    def is_paused(self) -> bool:
        """True within `paused`: a step is none of training."""
        return self._mode is _Mode.PAUSED

    @property
    def _active(self) -> GradientExchange | None:
        """The exchange, unless it is paused."""
        return None if self._mode is _Mode.PAUSED else self.exchange

    def _before_save(self, _: Any) -> None:
        if self._active is not None:
            self._active.settle()
        self._stepping.close()  # a failed step leaves it open

    def _save(self, _: Any, state_dict: dict[str, Any]) -> None:
        if self._mode is _Mode.PAUSED:
            return
        exchange = self.exchange
        held = self.renewal.held if exchange is None else state.save(exchange)
        if held is not None:
            state_dict[state.KEY] = held
            self.loss_note.note()
        if exchange is not None:
            exchange.momentum.put_into(state_dict, exchange.velocities())

    def _check_load(self, _: Any, state_dict: dict[str, Any]) -> dict[str, Any] | None:
        if self._mode is _Mode.PAUSED:
            return None
        if self.exchange is not None:
            self.refuse_if_busy("load_state_dict()")
        self._loading = state_dict.get(state.KEY, self._apart)
        if self.exchange is not None and self._loading is None:
            self.loss_note.note()
        if not self.renewal.pending:
            state.check(self.exchange, self._loading)
        elif self._mode is not _Mode.RESTORING:
            self.renewal.check_place(self._loading)
        return state.without_residuals(state_dict)

    def _load(self, _: Any) -> None:
        if self._active is not None:
            state.load(self._active, self._loading)
            self._active.release()
        elif self.renewal.pending and self._mode is not _Mode.PAUSED:
            self.renewal.hold(self._loading)
        self._loading = None


def attachment_of(optimizer: object) -> Attachment | None:
    """Returns an optimizer's attachment; None if it has no sparse compression."""
    attachment = getattr(optimizer, hooks.ATTRIBUTE, None)
    return attachment if isinstance(attachment, Attachment) else None


def require_attachment(optimizer: object) -> Attachment:
    """Returns an optimizer's attachment; raises InvalidArgumentError if it has none."""
    attachment = attachment_of(optimizer)
    if attachment is None:
        raise InvalidArgumentError(
            f"{type(optimizer).__name__} has no sparse compression: it does not come from "
            "hvd.DistributedOptimizer with one, nor was it given to attach()"
        )
    return attachment
