"""Connects the ranks of a new exchange, once they have agreed on a transport."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from hvd_sparse import _core
from hvd_sparse.errors import HvdSparseError, InvalidArgumentError
from hvd_sparse.ranks import checks, nccl, transport
from hvd_sparse.ranks.world import World
from hvd_sparse.waiting import limits_of_waits

# Seconds within which all ranks must have reached the construction of an exchange.
CONNECT_SECONDS = 120.0

_tags = itertools.count(1)


class _Introduction(NamedTuple):
    """A rank's description of itself, which it sends to the others.

    Attributes:
        problem: The reason why it cannot take part; empty if it can.
        transport: The transport that it has chosen.
        hub: Address at which rank 0's lifeline listens; empty on other ranks.
        tcp_address: Address at which it listens itself, if it has chosen TCP.
        mpi_rank: Its rank in MPI_COMM_WORLD, if it has chosen MPI.
        tag: A number that tells exchanges apart.
        machine: The machine on which it runs.
        node: The node to which it belongs in an exchange that sums nodes first.
        checks: True if it compares what the ranks do.
    """

    problem: str
    transport: str
    hub: str
    tcp_address: str
    mpi_rank: int
    tag: int
    machine: str
    node: str
    checks: bool


def connect(
    world: World,
    *,
    name: str,
    select_on: str,
    max_message_bytes: int,
    node: str,
    asked: str | None,
    problem: Exception | None,
) -> tuple[_core.Exchange, str]:
    """Connects all ranks of `world`, two at least, by a new exchange. Collective.

    Args:
        world: The ranks.
        name: Name of the exchange in errors.
        select_on: "caller" or "engine"; see `Exchange.between_ranks`.
        max_message_bytes: Longest message over MPI, in [1, 2^31); see `Exchange.between_ranks`.
        node: Name of this rank's node; equal for two ranks of one node only.
        asked: The transport that is asked for, if any.
        problem: The error due to which this rank cannot take part, if there is one.

    Returns:
        The exchange, and its transport.

    Raises:
        Exception: `problem`.
        HvdSparseError: This rank cannot use what was asked for.
        InvalidArgumentError: Another rank cannot take part, or the ranks differ in transport or
            checks.
        PeerLostError: A rank died, or did not come within 120 seconds.
    """
    if _core.with_nccl:  # loaded only when gradients on GPUs are exchanged
        _core.look_for_nccl_at(nccl.package_libraries())
    lifeline, limits, chosen, port, checking = None, None, "", None, False
    hub, mpi_rank = "", -1
    try:
        if problem is None:
            lifeline = _core.Lifeline(world.rank, world.size, name)
            limits = limits_of_waits(world.timeout)
            checking = checks.from_environment()
            chosen = transport.choose(world.mpi_problem, asked)
            port = _core.TcpPort() if chosen == transport.TCP else None
            hub = lifeline.listen() if world.rank == 0 else ""
            mpi_rank = _core.mpi_world_rank() if chosen == transport.MPI else -1
    except HvdSparseError as error:
        problem = error
    reports = world.allgather_object(
        _Introduction(
            problem="" if problem is None else str(problem),
            transport=chosen,
            hub=hub,
            tcp_address="" if port is None else port.address,
            mpi_rank=mpi_rank,
            tag=next(_tags),
            machine=world.node,
            node=node,
            checks=checking,
        ),
        _Introduction,
    )
    if problem is not None:
        raise problem
    assert lifeline is not None
    assert limits is not None
    for rank, one in enumerate(reports):
        if one.problem:
            raise InvalidArgumentError(f"rank {rank} cannot take part: {one.problem}")
    transport.require_one([one.transport for one in reports])
    checks.require_one([one.checks for one in reports])
    lifeline.connect("" if world.rank == 0 else reports[0].hub, CONNECT_SECONDS)
    nodes = _numbered([one.node for one in reports])
    if port is not None:
        core = _core.Exchange.over_tcp(
            world.rank,
            addresses=[one.tcp_address for one in reports],
            port=port,
            lifeline=lifeline,
            limits=limits,
            select_on=select_on,
            nodes=nodes,
            checks=checking,
        )
    else:
        core = _core.Exchange.over_mpi(
            [one.mpi_rank for one in reports],
            tag=reports[0].tag % 32768,
            lifeline=lifeline,
            limits=limits,
            max_message_bytes=max_message_bytes,
            select_on=select_on,
            machines=_numbered([one.machine for one in reports]),
            nodes=nodes,
            checks=checking,
        )
    return core, chosen


def _numbered(names: Sequence[str]) -> list[int]:
    """Returns equal numbers for equal names."""
    return [names.index(name) for name in names]
