"""Log levels: ours, else Horovod's; each line has time, level, place and rank."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from hvd_sparse import log
from hvd_sparse.compression.sparsifiers import as_sparsifier
from hvd_sparse.errors import InvalidArgumentError
from hvd_sparse.exchange.exchange import Exchange
from hvd_sparse.ranks.world import World

VARIABLES = (log.VARIABLE, log.HOROVODS_VARIABLE, log.HIDE_TIME)


@pytest.fixture(autouse=True)
def nothing_is_asked_for(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    yield
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    log.logger.setLevel(logging.NOTSET)
    log.configure(0)


@pytest.fixture
def said(monkeypatch, capsys):
    """Returns a function for the stderr of a program without set-up logging, unlike pytest."""
    monkeypatch.setattr(log, "_program_has_set_up_logging", lambda: False)
    return lambda: capsys.readouterr().err


LEVELS = ["trace", "debug", "info", "warning", "error", "fatal"]


@pytest.mark.parametrize("variable", [log.VARIABLE, log.HOROVODS_VARIABLE])
@pytest.mark.parametrize("level", LEVELS)
def test_a_level_shows_itself_and_all_above(monkeypatch, said, variable, level):
    monkeypatch.setenv(variable, level.upper() if level == "debug" else level)
    log.configure(3)
    numbers = [log.TRACE, *range(logging.DEBUG, logging.CRITICAL + 1, 10)]
    for name, number in zip(LEVELS, numbers, strict=True):
        log.logger.log(number, "a line of level %s", name)
    shown = [line.rsplit(" ", 1)[1] for line in said().splitlines()]
    assert shown == LEVELS[LEVELS.index(level) :]


def test_warnings_are_shown_where_nothing_is_asked_for(said):
    log.configure(0)
    log.logger.info("not this")
    log.logger.warning("but this")
    lines = said()
    assert lines.endswith("[0]: but this\n")
    assert "not this" not in lines


def test_our_variable_overrides_horovods(monkeypatch):
    monkeypatch.setenv(log.HOROVODS_VARIABLE, "error")
    assert log.level_from_environment() == logging.ERROR
    monkeypatch.setenv(log.VARIABLE, "debug")
    assert log.level_from_environment() == logging.DEBUG


def test_an_unknown_level_of_ours_is_refused_and_horovods_is_read_as_horovod_does(monkeypatch):
    monkeypatch.setenv(log.HOROVODS_VARIABLE, "chatty")
    assert log.level_from_environment() == logging.WARNING
    monkeypatch.setenv(log.VARIABLE, "chatty")
    with pytest.raises(InvalidArgumentError, match=f"{log.VARIABLE} must be one of .*got 'chatty'"):
        Exchange.between_ranks(World(0, 1), name="a test's exchange")


@pytest.mark.parametrize("hides", [False, True])
def test_a_line_has_time_level_place_and_rank(monkeypatch, said, hides):
    if hides:
        monkeypatch.setenv(log.HIDE_TIME, "1")
    log.configure(7)
    log.logger.warning("something is odd")
    time = "" if hides else r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: "
    pattern = rf"\[{time}W unit/test_log\.py:\d+\] \[7\]: something is odd\n"
    assert re.fullmatch(pattern, said())


def test_the_place_of_a_line_of_ours_begins_with_the_package(said):
    log.configure(0)
    file = Path(log.__file__).parent / "tuning" / "tuner.py"
    record = log.logger.makeRecord("hvd_sparse", logging.WARNING, str(file), 12, "odd", (), None)
    log.logger.handle(record)
    assert "W hvd_sparse/tuning/tuner.py:12] [0]: odd\n" in said()


def test_a_program_that_has_set_up_logging_gets_the_records_alone(capsys, caplog):
    log.configure(0)
    log.logger.warning("something is odd")
    assert capsys.readouterr().err == ""
    assert caplog.messages == ["something is odd"]


def test_configuring_twice_says_things_once(said):
    log.configure(0)
    log.configure(1)
    log.logger.warning("something is odd")
    lines = said()
    assert lines.count("something is odd") == 1
    assert "[1]: " in lines


def test_buckets_are_told_at_level_debug(monkeypatch, caplog):
    monkeypatch.setenv(log.VARIABLE, "debug")
    exchange = Exchange.between_ranks(World(0, 1), name="a test's exchange")
    exchange.add_bucket(
        "fc1.weight",
        numels=[100],
        segments=[100],
        max_ks=[10],
        sparsifier=as_sparsifier("top_k"),
        collective="gtopk",
    )
    exchange.close()
    assert "bucket 0 'fc1.weight': 100 entries, 10 sent at most, chosen by top_k" in caplog.text
