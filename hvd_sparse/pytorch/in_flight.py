"""Parameters whose update is on its way: each use of one waits for its update.

A parameter in flight is of a class of its own. Functions of torch that are given one call
`__torch_function__` first, wherever they are called: in the module that owns the parameter, in
another one that uses its weight, in an evaluation, in state_dict(). Only code that reads memory
without a function of torch would see the former value: TorchScript and extensions in C++. For their
modules there is a hook before forward.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

from hvd_sparse.errors import UnsupportedError
from hvd_sparse.pytorch.hooks import opaque

Land = Callable[[torch.Tensor], None]

_land_of: dict[int, Land] = {}  # by the identity of a parameter in flight
_hook: RemovableHandle | None = None

# Accesses that do not read a parameter's value.
_PASSED = frozenset(
    getattr(attribute, access)
    for attribute, accesses in (
        (torch.Tensor.grad, ("__get__", "__set__", "__delete__")),
        (torch.Tensor.requires_grad, ("__get__", "__set__")),
        (torch.Tensor.shape, ("__get__",)),
        (torch.Tensor.dtype, ("__get__",)),
        (torch.Tensor.device, ("__get__",)),
    )
    for access in accesses
)

# Modules that, outside of training, ask whether a weight is of a class of its own, also those of
# modules within them, and compute in another way if so.
_ASKING = (
    torch.nn.MultiheadAttention,
    torch.nn.TransformerEncoder,
    torch.nn.TransformerEncoderLayer,
)


def check_class(name: str, param: torch.Tensor) -> None:
    """Raises UnsupportedError for a parameter whose class cannot be replaced for a while."""
    plain = (torch.Tensor.__torch_function__, torch.nn.Parameter.__torch_function__)
    own = type(param).__torch_function__
    if type(param) is not torch.nn.Parameter and own not in plain:
        raise UnsupportedError(
            f"parameter '{name}' is of class {type(param).__name__}, which handles functions of "
            "torch itself, and wait_in_forward has to: leave wait_in_forward at False"
        )


def take_off(params: Iterable[torch.Tensor], land: Land) -> None:
    """Puts parameters in flight.

    Args:
        params: The parameters.
        land: Called with one of them before it is used; it has to pass it to `landed`.
    """
    global _hook
    for param in params:
        _land_of[id(param)] = land
        param.__class__ = _in_flight(type(param))
    if _hook is None and _land_of:
        _hook = torch_module.register_module_forward_pre_hook(_before_forward())


def landed(params: Iterable[torch.Tensor]) -> None:
    """Makes parameters that are in flight ordinary ones again."""
    global _hook
    for param in params:
        _land_of.pop(id(param), None)
        _become_ordinary(param)
    if _hook is not None and not _land_of:
        _hook.remove()
        _hook = None


def is_in_flight(param: torch.Tensor) -> bool:
    """Returns true if the update of a parameter is on its way."""
    return id(param) in _land_of


def _become_ordinary(param: torch.Tensor) -> None:
    ordinary = getattr(type(param), "_ordinary", None)
    if ordinary is not None:
        param.__class__ = ordinary


@functools.cache
def _in_flight(ordinary: type[torch.Tensor]) -> type[torch.Tensor]:
    """Returns the class of parameters in flight that are otherwise of class `ordinary`."""
    await_all = opaque(_await)

    def torch_function(
        _: type, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func not in _PASSED and await_all([args, kwargs]):
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    def deepcopy(param: torch.Tensor, memo: dict[int, Any]) -> Any:
        _await(param)
        return copy.deepcopy(param, memo)

    members = {
        "_ordinary": ordinary,
        "__torch_function__": classmethod(torch_function),
        "__deepcopy__": deepcopy,
        "__module__": __name__,
    }
    metaclass: Any = type(ordinary)
    made: type[torch.Tensor] = metaclass(f"{ordinary.__name__}InFlight", (ordinary,), members)
    # Optimizers choose between implementations, whose bits differ, by the classes of parameters.
    if ordinary in torch_optimizer._foreach_supported_types:
        torch_optimizer._foreach_supported_types.append(made)
    return made


def _await(found: Any) -> bool:
    """Waits for all parameters in flight within nested arguments; returns true if there are any."""
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list | tuple):
        awaited = [_await(one) for one in found]
        return any(awaited)
    if not hasattr(type(found), "_ordinary"):
        return False
    land = _land_of.get(id(found))
    if land is not None:
        land(found)
    _become_ordinary(found)  # copies of a parameter in flight have its class
    return True


@functools.cache
def _before_forward() -> Callable[..., None]:
    """Returns the hook that waits for the parameters of a module, before its forward."""
    # PyTorch warns that global hooks fire once more for a compiled module, which does no harm here.
    warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hoo")
    return opaque(_wait_for_module)


def _wait_for_module(module: torch.nn.Module, _: Any) -> None:
    compiled = getattr(module, "_orig_mod", None)  # graphs would break at parameters in flight
    whole = isinstance(module, torch.jit.ScriptModule) or compiled is not None
    if whole or (isinstance(module, _ASKING) and not module.training):
        params = list(module.parameters())
    else:
        params = [one for one in module._parameters.values() if one is not None]
    for param in params:
        land = _land_of.get(id(param))
        if land is not None:
            land(param)
