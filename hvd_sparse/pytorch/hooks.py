"""Hooks on parameters and around an optimizer's step, which keep nothing alive, never compiled.

PyTorch wraps `step` of a class when an optimizer is constructed, and marks it as `hooked`. A hooked
step calls the global pre-hooks first, then those of the instance, each in the order of
registration. A method that replaces it later calls none of them.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

from hvd_sparse.errors import UnsupportedError

_F = TypeVar("_F", bound=Callable[..., object])

# Of an optimizer: an object with `before_step`, which returns the new arguments of step(), the
# optimizer among them, or None; and `after_step`.
ATTRIBUTE = "_hvd_sparse"

# Optimizer.__init__ creates these dictionaries, in which a sparse exchange registers hooks.
_DICTIONARIES = (
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


def opaque(function: _F) -> _F:
    """Returns `function` such that it and everything that it calls are never compiled.

    Compiled code that calls it breaks its graph there. Do not use it as a decorator: it imports
    torch._dynamo, which takes seconds unless an optimizer was constructed before.
    """
    return cast(_F, torch.compiler.disable(function))  # type: ignore[no-untyped-call]


def calling(method: Callable[..., object], *args: object) -> Callable[[torch.Tensor], None]:
    """Returns a hook for parameters that calls a method, and does not keep its object alive."""
    reference = weakref.WeakMethod(method)

    def hook(_: torch.Tensor) -> None:
        alive = reference()
        if alive is not None:
            alive(*args)

    return opaque(hook)


def remove(hooks: Sequence[RemovableHandle]) -> None:
    """Removes hooks from their parameters."""
    for one in hooks:
        one.remove()


def check_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Refuses an optimizer whose state_dict() and step() cannot run the exchange's hooks.

    Raises:
        UnsupportedError: The class does not call `Optimizer.__init__`, as some wrappers around
            another optimizer do not. Attributes forwarded from the inner optimizer do not count.
    """
    missing = [name for name in _DICTIONARIES if name not in vars(optimizer)]
    if missing:
        name = type(optimizer).__name__
        raise UnsupportedError(
            f"{name} does not run the hooks of torch.optim.Optimizer, which a sparse exchange "
            f"needs (it has no {missing[0]}: {name}.__init__ does not call Optimizer.__init__). If "
            f"{name} wraps another optimizer, distribute that one, and put {name} around the result"
        )


def run_first() -> None:
    """Makes the exchange run before all other step pre-hooks, whenever these were registered."""
    hooks = torch_optimizer._global_optimizer_pre_hooks
    assert isinstance(hooks, OrderedDict)
    hook = _before_hook()
    if hook not in hooks.values():
        handle = torch_optimizer.register_optimizer_step_pre_hook(hook)
        hooks.move_to_end(handle.id, last=False)


def surround(optimizer: torch.optim.Optimizer) -> None:
    """Makes a replaced step() run the exchange first, too; a hooked one does so already.

    The method may have been replaced in the class or in the instance. If it still calls the
    original one, the exchange has nothing left to do there.
    """
    if getattr(optimizer.step, "hooked", False):
        return
    own, before, after = vars(optimizer).get("step"), _before_hook(), after_hook()

    @functools.wraps(optimizer.step)
    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        changed = before(self, (self, *args), kwargs)
        if changed is not None:
            (_, *args), kwargs = changed
        result = (own or types.MethodType(type(self).step, self))(*args, **kwargs)
        after(self, (self, *args), kwargs)
        return result

    step.hooked = True  # type: ignore[attr-defined]
    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]


@functools.cache
def after_hook() -> Callable[..., None]:
    """Returns the step post-hook of sparse optimizers."""
    return opaque(_after_step)


@functools.cache
def _before_hook() -> Callable[..., Any]:
    return opaque(_before_step)


def _before_step(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    around = getattr(optimizer, ATTRIBUTE, None)
    return None if around is None else around.before_step(args, kwargs)


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    getattr(optimizer, ATTRIBUTE).after_step()
