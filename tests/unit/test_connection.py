"""Connecting ranks: a problem of one rank is reported to all."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hvd_sparse import _core
from hvd_sparse.errors import InvalidArgumentError, UnavailableError
from hvd_sparse.ranks import connection, transport


class World:
    """Two ranks as seen by one of them; the other one sends `theirs`."""

    size, node, mpi_problem, timeout = 2, "node", "", None

    def __init__(self, rank, theirs=None):
        self.rank, self.told, self._theirs = rank, None, theirs

    def allgather_object(self, mine, kind):
        self.told = mine
        return [self._theirs or mine, self._theirs or mine]


def connect(world, means):
    connection.connect(
        world,
        name="an exchange",
        select_on="caller",
        max_message_bytes=1 << 20,
        node="node",
        asked=means,
        problem=None,
    )


@pytest.fixture
def no_descriptors(monkeypatch):
    def fail(*_):
        raise UnavailableError("too many open files")

    monkeypatch.setattr(_core, "with_mpi", True)
    monkeypatch.setattr(_core, "Lifeline", lambda *_: SimpleNamespace(listen=fail))
    monkeypatch.setattr(_core, "mpi_world_rank", fail, raising=False)


@pytest.mark.parametrize(("rank", "means"), [(0, transport.TCP), (1, transport.MPI)])
def test_a_rank_that_cannot_take_part_tells_the_others(no_descriptors, rank, means):
    world = World(rank)
    with pytest.raises(UnavailableError, match="too many open files"):
        connect(world, means)
    assert world.told.problem == "too many open files"


def test_a_rank_that_is_told_of_a_problem_names_whose_it_is():
    theirs = SimpleNamespace(problem="too many open files")
    with pytest.raises(InvalidArgumentError, match="rank 0 cannot take part: too many open files"):
        connect(World(1, theirs), transport.TCP)
