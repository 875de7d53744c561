"""Hands the residuals and the step count of one world of ranks over to the next world.

The residual of a rank that died is lost. Those that the other ranks hold are spread over the ranks
of the new world, or reset; if every rank is back in its place, each continues with its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from numpy.typing import NDArray

from hvd_sparse.errors import CheckpointMismatchError, InvalidArgumentError
from hvd_sparse.log import logger
from hvd_sparse.ranks.world import World
from hvd_sparse.state import checkpoint
from hvd_sparse.state.saved_exchange import mismatch_of_unit
from hvd_sparse.state.spreading import SavedSum

SPREAD = "spread"
RESET = "reset"
POLICIES = (SPREAD, RESET)


class Holding(NamedTuple):
    """The origin of a rank's residuals.

    Attributes:
        rank: Rank that held them, in the world before.
        size: Number of ranks of that world.
        steps: Number of steps exchanged until then.
        whole: True if they are the sum over all ranks of that world.
    """

    rank: int
    size: int
    steps: int
    whole: bool = False

    @classmethod
    def of(cls, held: dict[str, Any]) -> Holding:
        """Returns the origin of a saved state of an exchange."""
        return cls(held["rank"], held["size"], held["step"], held.get("whole", False))


Rates: TypeAlias = dict[str, float] | float | None  # by parameter, or the whole optimizer's


class _Claim(NamedTuple):
    """A rank's description of the residuals that it holds, for the other ranks.

    Attributes:
        policy: Its policy for residuals.
        holding: The origin of its residuals; None if it has just joined.
        rates: Learning rates at which they were accumulated.
        mismatch: Why they cannot go on here; None if they can.
    """

    policy: str
    holding: Holding | None = None
    rates: Rates = None
    mismatch: str | None = None


class Successor(Protocol):
    """A new exchange, and its framework's access to a rank's saved state."""

    @property
    def world(self) -> World:
        """The ranks of the new exchange."""

    @property
    def conditions(self) -> Mapping[str, str]:
        """Conditions of the new exchange, from `conditions_of`."""

    @property
    def layers(self) -> Mapping[str, int]:
        """Elements of each layer that can be sent sparse, by the name under which it is saved."""

    def residuals_of(self, held: Mapping[str, Any]) -> Mapping[str, NDArray[Any]]:
        """Returns the residuals in a saved state: float32, flat, by layer."""

    def rates_of(self, held: Mapping[str, Any]) -> Rates:
        """Returns the learning rates in a saved state."""

    def allreduce(self, part: NDArray[Any], name: str) -> NDArray[Any]:
        """Sums a float64 array over the ranks; the name is the same on all of them."""

    def go_on(self, held: dict[str, Any]) -> None:
        """Continues with the saved state of this very rank, as if nothing had happened."""

    def begin(self, residuals: Mapping[str, NDArray[Any]], *, steps: int, rates: Any) -> None:
        """Begins after so many steps with residuals of some layers; missing ones are zero."""

    def adopt(self, held: dict[str, Any] | None, source: int) -> None:
        """Adopts what ranks have in common besides residuals from one of them. Collective.

        Args:
            held: The state saved on this rank; None if it has just joined.
            source: The rank.
        """


def checked_policy(policy: str) -> str:
    """Returns `policy` if it is valid; raises InvalidArgumentError otherwise."""
    return checkpoint.checked_policy(policy, POLICIES)


def unchanged(holdings: Sequence[Holding | None]) -> bool:
    """Returns true if each rank holds its own residuals, at one step, and no rank came or went."""
    return all(
        holding is not None
        and not holding.whole
        and (holding.rank, holding.size) == (rank, len(holdings))
        and holding.steps == _moment(holdings)
        for rank, holding in enumerate(holdings)
    )


def contributors(holdings: Sequence[Holding | None]) -> list[int]:
    """Returns the ranks whose residuals make up the sum.

    All ranks take over the first holder's model, so those whose residuals are of another step are
    left out: that model already contains part of their residuals, or lacks part of what they sent.
    """
    fit = [rank for rank, one in enumerate(holdings) if one and one.steps == _moment(holdings)]
    whole = [rank for rank in fit if _at(holdings, rank).whole]
    return whole[:1] or fit


def lost(holdings: Sequence[Holding | None]) -> int:
    """Returns the number of ranks of the world before whose residuals are lost."""
    contributing = contributors(holdings)
    if not contributing or _at(holdings, contributing[0]).whole:
        return 0
    return _at(holdings, contributing[0]).size - len(contributing)


def inherit(successor: Successor, held: dict[str, Any] | None, policy: str) -> None:
    """Gives a new exchange the state that its ranks held before. Collective.

    Args:
        successor: The new exchange, before its first step.
        held: The state saved on this rank; None if it has just joined.
        policy: "spread" or "reset".

    Raises:
        CheckpointMismatchError: On every rank: a rank holds residuals of other layers, or in
            another unit.
        InvalidArgumentError: On every rank: the ranks' policies differ.
    """
    layers, world = successor.layers, successor.world
    own = _Claim(policy)
    if held is not None:
        mismatch = "the residuals are of other layers" if held["layers"] != layers else None
        mismatch = mismatch or mismatch_of_unit(held, successor.conditions)
        own = _Claim(policy, Holding.of(held), successor.rates_of(held), mismatch)
    claims: list[_Claim] = world.allgather_object(own, _Claim)
    for rank, one in enumerate(claims):
        if one.policy != claims[0].policy:
            raise InvalidArgumentError(
                f"residuals is {one.policy!r} on rank {rank} and {claims[0].policy!r} on rank 0"
            )
        if one.mismatch is not None:
            raise CheckpointMismatchError(f"rank {rank} holds what does not fit: {one.mismatch}")
    holdings = [one.holding for one in claims]
    contributing = contributors(holdings)
    if not contributing:
        return
    if unchanged(holdings):
        assert held is not None
        successor.go_on(held)
        return
    if world.rank == 0:
        _tell(holdings, policy)
    first, rates = _at(holdings, contributing[0]), claims[contributing[0]].rates
    shares: Mapping[str, NDArray[Any]] = {}
    if policy == SPREAD:
        total = SavedSum(layers)
        if world.rank in contributing:
            assert held is not None
            total.add(held["layers"], successor.residuals_of(held))
        shares = total.share(successor.allreduce, rank=world.rank, size=world.size)
    successor.begin(shares, steps=first.steps, rates=rates)
    successor.adopt(held, contributing[0])


def total_of(successor: Successor, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns this rank's saved state with the float64 sum of all ranks' residuals. Collective."""
    total = SavedSum(saved["layers"])
    total.add(saved["layers"], successor.residuals_of(saved))
    emptied: dict[str, Any] = {"velocities": {}, "states": {}, "tuning": None}
    return {**saved, **emptied, "residuals": total.over_ranks(successor.allreduce), "whole": True}


def _tell(holdings: Sequence[Holding | None], policy: str) -> None:
    gone = lost(holdings)
    before = _at(holdings, contributors(holdings)[0]).size
    kept = {
        SPREAD: f"what was kept is spread over {len(holdings)}",
        RESET: f"what was kept is reset, as asked for; there are {len(holdings)} now",
    }[policy]
    if gone:
        logger.warning("the residuals of %d of %d ranks are lost with them; %s", gone, before, kept)
    else:
        logger.info("the residuals of all %d ranks are here; %s", before, kept)


def _moment(holdings: Sequence[Holding | None]) -> int | None:
    return next((holding.steps for holding in holdings if holding is not None), None)


def _at(holdings: Sequence[Holding | None], rank: int) -> Holding:
    holding = holdings[rank]
    assert holding is not None
    return holding
