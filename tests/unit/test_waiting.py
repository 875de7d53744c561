"""Waits end with the awaited event, with the exchange, or at a deadline that has a name."""

from __future__ import annotations

import itertools

import pytest

from hvd_sparse.errors import ExchangeTimeoutError, PeerLostError
from hvd_sparse.waiting import limits_of_waits, wait_until


def never():
    return False


def nothing_has_ended():
    pass


def test_what_never_comes_is_given_up_by_name(monkeypatch):
    monkeypatch.setenv("HVD_SPARSE_TIMEOUT_SECONDS", "0.05")
    match = r"^gave up waiting for a bus after 0.05 s \(HVD_SPARSE_TIMEOUT_SECONDS\)$"
    with pytest.raises(ExchangeTimeoutError, match=match):
        wait_until(never, nothing_has_ended, "a bus")


@pytest.mark.parametrize(("asked", "seconds"), [(None, 77), ("", 77), ("0", 0), ("33", 33)])
def test_the_variable_goes_before_the_timeout_of_a_group(monkeypatch, asked, seconds):
    monkeypatch.delenv("HVD_SPARSE_TIMEOUT_SECONDS", raising=False)
    assert limits_of_waits(None).fail_seconds == 1800
    if asked is not None:
        monkeypatch.setenv("HVD_SPARSE_TIMEOUT_SECONDS", asked)
    assert limits_of_waits(77).fail_seconds == seconds


def test_what_has_ended_the_exchange_is_told_before_the_deadline(monkeypatch):
    monkeypatch.setenv("HVD_SPARSE_TIMEOUT_SECONDS", "1e-9")

    def check():
        raise PeerLostError("rank 1 is gone")

    with pytest.raises(PeerLostError, match="rank 1 is gone"):
        wait_until(never, check, "a bus")


@pytest.mark.parametrize("limit", ["0", "60"])
def test_what_comes_in_time_is_waited_for(monkeypatch, limit):
    monkeypatch.setenv("HVD_SPARSE_TIMEOUT_SECONDS", limit)
    looks = itertools.count()
    wait_until(lambda: next(looks) == 5, nothing_has_ended, "a bus")
    assert next(looks) == 6


def test_a_long_wait_is_logged_once_with_what_is_known_by_then(monkeypatch, caplog):
    monkeypatch.setenv("HVD_SPARSE_STALL_SECONDS", "1e-6")
    looks = itertools.count()
    wait_until(lambda: next(looks) == 5, nothing_has_ended, lambda: f"bus {next(looks)}")
    assert [one.getMessage() for one in caplog.records] == [
        "this rank has waited 1e-06 s for bus 2; it goes on waiting"
    ]


def test_what_is_there_is_not_waited_for():
    def check():
        pytest.fail("the exchange was asked")

    wait_until(lambda: True, check, "a bus")
