"""Checks, before a gradient is sent, that all ranks are about to exchange the same things."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from hvd_sparse.compression import Compression
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.ranks.world import World


class _Report(NamedTuple):
    """A rank's summary of the exchange that it is about to build.

    Attributes:
        problem: The reason why the rank cannot go on, if it cannot.
        digest: SHA-256 of its `_Details`.
        serial: Number of optimizers that it has wrapped.
    """

    problem: str | None
    digest: str
    serial: int


class _Details(NamedTuple):
    """A rank's description in full, sent only if the digests differ.

    Attributes:
        parameters: Name, shape and type of each.
        options: Options by name.
    """

    parameters: list[str]
    options: dict[str, str]


def agree(
    world: World,
    ranks: Sequence[int],
    *,
    problem: Exception | None,
    parameters: Sequence[str],
    options: dict[str, str],
    serial: int,
) -> int:
    """Compares what the ranks are about to exchange. Collective.

    Args:
        world: The ranks.
        ranks: Their numbers in Horovod, for messages.
        problem: The error due to which this rank cannot go on, if there is one.
        parameters: Name, shape and type of each parameter, as messages show them.
        options: Other options that must be equal, by name.
        serial: Number of optimizers that this rank has wrapped.

    Returns:
        The largest serial of any rank; no rank has used the number above it yet.

    Raises:
        InvalidArgumentError: On all ranks: another rank has a problem, or something differs; names
            the problem, or both sides. A rank that has a problem raises that instead.
    """
    parameters = list(parameters)
    digest = hashlib.sha256(repr((parameters, sorted(options.items()))).encode()).hexdigest()
    report = _Report(None if problem is None else str(problem), digest, serial)
    reports: list[_Report] = world.allgather_object(report, _Report)
    if problem is not None:
        raise problem
    for rank, one in zip(ranks, reports, strict=True):
        if one.problem is not None:
            raise InvalidArgumentError(f"rank {rank} cannot take part: {one.problem}")
    if len({one.digest for one in reports}) > 1:
        details = world.allgather_object(_Details(parameters, options), _Details)
        raise InvalidArgumentError(_first_difference(ranks, details))
    return max(one.serial for one in reports)


def agree_on_call(
    world: World, ranks: Sequence[int], function: str, **arguments: str | int
) -> None:
    """Compares the arguments with which the ranks call a function. Collective.

    Args:
        world: The ranks.
        ranks: Their numbers in Horovod, for messages.
        function: The function's name, for messages.
        **arguments: This rank's arguments, by the names that messages show.

    Raises:
        InvalidArgumentError: On all ranks: the arguments differ; names both sides.
    """
    mine, kind = tuple(arguments.values()), tuple[str | int, ...]
    for rank, theirs in zip(ranks, world.allgather_object(mine, kind), strict=True):
        if theirs != mine:
            raise InvalidArgumentError(
                f"{function} was called with ({', '.join(arguments)}) = {theirs} on rank {rank} "
                f"and {mine} on rank {world.job_rank}"
            )


def kind_of_device(kind: str, compression: Compression) -> dict[str, str]:
    """Returns an option for `agree`: a plan needs gradients on the same kind of device everywhere.

    Args:
        kind: Kind of the device on which this rank's gradients lie: "cpu" or the like.
        compression: The compression, which makes plans if it is adaptive.
    """
    return {"kind of device": kind} if compression.adaptive else {}


def _first_difference(ranks: Sequence[int], details: Sequence[_Details]) -> str:
    parameters, options = details[0]
    for rank, (their_parameters, their_options) in zip(ranks[1:], details[1:], strict=True):
        for name, value in options.items():
            if their_options[name] != value:
                return (
                    f"{name} is {their_options[name]} on rank {rank} and {value} on rank {ranks[0]}"
                )
        for index, (ours, theirs) in enumerate(zip_longest(parameters, their_parameters)):
            if ours != theirs:
                return (
                    f"the models differ in parameter {index}: rank {rank} has "
                    f"{theirs or 'no further one'} where rank {ranks[0]} has "
                    f"{ours or 'no further one'}"
                )
    return "the ranks describe their models differently"
