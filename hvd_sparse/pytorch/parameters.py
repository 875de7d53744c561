"""The parameters of an optimizer, by name and by group."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from hvd_sparse.errors import HvdSparseError, InvalidArgumentError

NamedParameters = Sequence[tuple[str, torch.Tensor]]


def name_parameters(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[Any] | None
) -> list[tuple[str, torch.Tensor]]:
    """Returns the parameters of `optimizer` that require gradients, in the order of their names.

    Raises:
        InvalidArgumentError: An element is not a tuple, a name occurs twice or a parameter has no
            name (Horovod's checks, in its words); or a parameter is lazy, and has no shape yet.
    """
    if named_parameters is None:
        named = [
            (f"allreduce.noname.{i}.{j}", param)
            for i, group in enumerate(optimizer.param_groups)
            for j, param in enumerate(group["params"])
        ]
    else:
        named = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in named):
        raise InvalidArgumentError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced "
            "by model.named_parameters()."
        )
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InvalidArgumentError(
            "Parameter names in named_parameters must be unique. Found duplicates: "
            + ", ".join(twice)
        )
    optimized = {id(param) for group in optimizer.param_groups for param in group["params"]}
    unnamed = optimized - {id(param) for _, param in named}
    if unnamed:
        raise InvalidArgumentError(
            "named_parameters was specified, but one or more model parameters were not named. "
            f"Python object ids: {', '.join(map(str, unnamed))}"
        )
    first_names: dict[int, tuple[str, torch.Tensor]] = {}
    for name, param in named:
        if id(param) in optimized and param.requires_grad:
            first_names.setdefault(id(param), (name, param))
            check_not_lazy(name, param)
    return list(first_names.values())


def check_not_lazy(name: str, param: torch.Tensor) -> None:
    """Raises InvalidArgumentError for a parameter that has no shape yet."""
    if torch.nn.parameter.is_lazy(param):
        raise InvalidArgumentError(
            f"parameter '{name}' is uninitialized, and has no shape yet: call the model once with "
            "a dummy batch, which initializes the parameters of LazyLinear and other lazy modules, "
            "before its optimizer is distributed"
        )


def describe(named: NamedParameters) -> list[str]:
    """Returns name, shape and type of each parameter, which must be the same on all ranks."""
    return [f"'{name}' {tuple(p.shape)} {str(p.dtype)[6:]}" for name, p in named]


def check_kind(name: str, value: object, kind: type) -> None:
    """Raises InvalidArgumentError unless an argument is a module, or an optimizer, of torch.

    Args:
        name: Name of the argument.
        value: The argument.
        kind: `torch.nn.Module` or `torch.optim.Optimizer`.
    """
    if not isinstance(value, kind):
        wanted = "torch.nn.Module" if kind is torch.nn.Module else "torch.optim.Optimizer"
        raise InvalidArgumentError(
            f"{name} must be a {wanted}, got {type(value).__module__}.{type(value).__qualname__}"
        )


def weakly(optimizer: torch.optim.Optimizer) -> Callable[[], torch.optim.Optimizer]:
    """Returns a weak getter of `optimizer`, which raises HvdSparseError once that is gone."""
    reference = weakref.ref(optimizer)

    def owner() -> torch.optim.Optimizer:
        alive = reference()
        if alive is None:
            raise HvdSparseError(
                "the optimizer of these gradients no longer exists: keep a reference to it for as "
                "long as you train"
            )
        return alive

    return owner


class ParameterGroups:
    """The groups of one optimizer, found by the identity of their parameters.

    They are searched once per step, when a parameter is first looked up, so a user may remove,
    merge and reorder them between two steps.

    Args:
        optimizer: The optimizer.

    Attributes:
        of_class: The name of the optimizer's class.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._owner = weakly(optimizer)
        self.of_class = type(optimizer).__name__
        self._group_of: dict[int, dict[str, Any]] = {}

    def of(self, param: torch.Tensor) -> dict[str, Any] | None:
        """Returns the group that holds a parameter in this step; None if there is none."""
        if not self._group_of:
            self._group_of = {
                id(one): group for group in self._owner().param_groups for one in group["params"]
            }
        return self._group_of.get(id(param))

    def release(self) -> None:
        """Prepares for the next step."""
        self._group_of.clear()
