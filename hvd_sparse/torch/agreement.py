"""Finds out, before a gradient is sent, whether all ranks want to exchange the same things."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import torch

from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.world import World

NamedParameters = Sequence[tuple[str, torch.Tensor]]


def name_parameters(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[Any] | None
) -> list[tuple[str, torch.Tensor]]:
    """The parameters of `optimizer` that want gradients, in the order in which they were named.

    Raises:
        InvalidArgumentError: As Horovod does, in its words: for elements that are no tuples, names
            that occur twice and parameters without a name.
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
    return list(first_names.values())


def agree(
    world: World,
    ranks: Sequence[int],
    *,
    problem: Exception | None,
    named: NamedParameters,
    options: dict[str, str],
    serial: int,
) -> int:
    """Compares what the ranks are about to exchange. Collective.

    Args:
        world: The ranks.
        ranks: Their numbers in Horovod, for messages.
        problem: Why this rank cannot go on, if it cannot.
        named: The parameters.
        options: What else must be equal, by name.
        serial: How many optimizers this rank has wrapped.

    Returns:
        The largest serial of any rank: a number that no rank has used yet is one above it.

    Raises:
        InvalidArgumentError: On all ranks: what another rank's problem is, or what differs, with
            both sides named. The rank that has a problem raises that.
    """
    parameters = [f"'{name}' {tuple(p.shape)} {str(p.dtype)[6:]}" for name, p in named]
    digest = hashlib.sha256(repr((parameters, sorted(options.items()))).encode()).hexdigest()
    reports = world.allgather_object((problem and str(problem), digest, serial))
    if problem is not None:
        raise problem
    for rank, (text, _, _) in zip(ranks, reports, strict=True):
        if text is not None:
            raise InvalidArgumentError(f"rank {rank} cannot take part: {text}")
    if len({digest for _, digest, _ in reports}) > 1:
        details = world.allgather_object((parameters, options))
        raise InvalidArgumentError(_first_difference(ranks, details))
    return max(int(serial) for _, _, serial in reports)


def _first_difference(
    ranks: Sequence[int], details: Sequence[tuple[list[str], dict[str, str]]]
) -> str:
    parameters, options = details[0]
    for rank, (their_parameters, their_options) in zip(ranks[1:], details[1:], strict=True):
        for name, value in options.items():
            if their_options[name] != value:
                return (
                    f"{name} is {their_options[name]} on rank {rank} and {value} on rank {ranks[0]}"
                )
        for place, (ours, theirs) in enumerate(zip_longest(parameters, their_parameters)):
            if ours != theirs:
                return (
                    f"the models differ in parameter {place}: rank {rank} has "
                    f"{theirs or 'no further one'} where rank {ranks[0]} has "
                    f"{ours or 'no further one'}"
                )
    return "the ranks describe their models differently"
