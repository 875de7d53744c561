"""The choice of a transport: the requested one, else Horovod's MPI, else TCP."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hvd_sparse import _core
from hvd_sparse.errors import InvalidArgumentError, UnavailableError
from hvd_sparse.ranks import transport


def horovod(*, mpi, threads=True):
    def threads_supported():
        if not mpi:
            raise ValueError("Horovod was not built with MPI")
        return threads

    return SimpleNamespace(mpi_enabled=lambda: mpi, mpi_threads_supported=threads_supported)


@pytest.fixture(autouse=True)
def nothing_is_asked_for(monkeypatch):
    monkeypatch.delenv(transport.VARIABLE, raising=False)


@pytest.fixture
def with_mpi(monkeypatch):
    monkeypatch.setattr(_core, "with_mpi", True)


@pytest.mark.parametrize(
    ("hvd", "problem"),
    [
        (horovod(mpi=True), None),
        (horovod(mpi=False), "horovodrun --mpi"),
        (horovod(mpi=True, threads=False), "unset HOROVOD_MPI_THREADS_DISABLE"),
    ],
)
def test_mpi_is_taken_where_horovod_uses_it_with_threads(with_mpi, hvd, problem):
    found = transport.problem_with_mpi(hvd)
    assert problem is None or problem in found
    assert transport.choose(found) == ("mpi" if problem is None else "tcp")


def test_a_build_without_mpi_takes_tcp(monkeypatch):
    monkeypatch.setattr(_core, "with_mpi", False)
    problem = transport.problem_with_mpi(horovod(mpi=True))
    assert "HVD_SPARSE_WITH_MPI=1" in problem
    assert transport.choose(problem) == "tcp"


@pytest.mark.parametrize("problem", ["", "there is none"])
def test_tcp_can_be_asked_for_everywhere(monkeypatch, problem):
    assert transport.choose(problem, "tcp") == "tcp"
    monkeypatch.setenv(transport.VARIABLE, "tcp")
    assert transport.choose(problem) == "tcp"
    assert transport.choose("", "mpi") == "mpi"  # an argument takes precedence over the environment


def test_mpi_that_is_asked_for_and_missing_is_an_error(monkeypatch):
    monkeypatch.setenv(transport.VARIABLE, "mpi")
    assert transport.choose("") == "mpi"
    with pytest.raises(UnavailableError, match=r"HVD_SPARSE_TRANSPORT is 'mpi', .*: there is none"):
        transport.choose("there is none")


def test_other_names_are_refused(monkeypatch):
    monkeypatch.setenv(transport.VARIABLE, "MPI")
    with pytest.raises(InvalidArgumentError, match=r"HVD_SPARSE_TRANSPORT must be .*, got 'MPI'"):
        transport.choose("")
    with pytest.raises(InvalidArgumentError, match=r"transport must be .*, got 'udp'"):
        transport.choose("", "udp")


def test_ranks_must_choose_the_same():
    transport.require_one(["tcp", "tcp"])
    with pytest.raises(InvalidArgumentError, match="rank 2 has chosen 'tcp' and rank 0 'mpi'"):
        transport.require_one(["mpi", "mpi", "tcp"])
