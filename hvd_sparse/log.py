"""Logging: the logger `hvd_sparse`, with Horovod's levels and prefix.

    [2026-01-31 12:00:00.123456: W hvd_sparse/tuning/tuner.py:...] [0]: gradients are sent dense ...

HVD_SPARSE_LOG_LEVEL is one of trace, debug, info, warning, error, fatal; if it is not set,
HOROVOD_LOG_LEVEL is used, so that one variable serves both. Lines go to stderr, unless the program
has given Python's root logger handlers of its own: then those alone handle them.
"""

from __future__ import annotations

import logging
import os
from datetime import datetime
from pathlib import Path

from hvd_sparse import _core
from hvd_sparse.errors import InvalidArgumentError

VARIABLE = "HVD_SPARSE_LOG_LEVEL"
HOROVODS_VARIABLE = "HOROVOD_LOG_LEVEL"
HIDE_TIME = "HOROVOD_LOG_HIDE_TIME"

TRACE = 5  # below logging.DEBUG
_LEVELS = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
_LETTERS = {level: name[0].upper() for name, level in _LEVELS.items()}

_PACKAGE = Path(__file__).parent

logger = logging.getLogger("hvd_sparse")
logging.addLevelName(TRACE, "TRACE")


def configure(rank: int) -> None:
    """Sets up this process's logger as the environment says.

    Args:
        rank: Rank of the process in the job, printed in each line.

    Raises:
        InvalidArgumentError: HVD_SPARSE_LOG_LEVEL is not a level.
    """
    level = level_from_environment()
    if level is not None:
        logger.setLevel(level)
    for handler in list(logger.handlers):
        if isinstance(handler, _Handler):
            logger.removeHandler(handler)
    logger.addHandler(_Handler(rank))
    _core.show_warnings(logger.isEnabledFor(logging.WARNING))


def level_from_environment() -> int | None:
    """Returns the level that the environment asks for, if any.

    Raises:
        InvalidArgumentError: HVD_SPARSE_LOG_LEVEL is not a level.
    """
    own = os.environ.get(VARIABLE, "")
    if own:
        if own.lower() not in _LEVELS:
            raise InvalidArgumentError(
                f"{VARIABLE} must be one of {', '.join(_LEVELS)}; got {own!r}"
            )
        return _LEVELS[own.lower()]
    horovods = os.environ.get(HOROVODS_VARIABLE)
    if horovods is None:
        return None
    return _LEVELS.get(horovods.lower(), logging.WARNING)  # Horovod treats unknown words so


def _program_has_set_up_logging() -> bool:
    return bool(logging.getLogger().handlers)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # generic for type checkers only
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.setFormatter(_Formatter(rank))

    def emit(self, record: logging.LogRecord) -> None:
        if not _program_has_set_up_logging():
            super().emit(record)


class _Formatter(logging.Formatter):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank
        hidden = os.environ.get(HIDE_TIME, "")
        self._shows_time = not (hidden.isdigit() and int(hidden) > 0)

    def format(self, record: logging.LogRecord) -> str:
        time = ""
        if self._shows_time:
            time = f"{datetime.fromtimestamp(record.created):%Y-%m-%d %H:%M:%S.%f}: "
        letter = _LETTERS.get(record.levelno, record.levelname[0])
        place = f"{_shown(Path(record.pathname))}:{record.lineno}"
        return f"[{time}{letter} {place}] [{self._rank}]: {record.getMessage()}"


def _shown(source: Path) -> Path:
    """Shortens a path to begin with this package's folder, or with the file's own folder."""
    base = _PACKAGE if _PACKAGE in source.parents else source.parent
    return source.relative_to(base.parent)
