"""Waits that end at a deadline, or when the exchange fails, with a warning before."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from hvd_sparse import _core, log
from hvd_sparse.errors import ExchangeTimeoutError

# Time between two polls of the condition and of the exchange: a share of the time waited so far,
# between these limits. Polling every 100 us would take a fifth of a core, which other ranks of the
# machine may need.
_POLL_SHARE = 0.05
_SHORTEST_POLL, _LONGEST_POLL = 2e-4, 2e-3  # seconds


def limits_of_waits(timeout: float | None) -> _core.WaitLimits:
    """Returns how long a rank waits for others that live.

    Args:
        timeout: The deadline in seconds if HVD_SPARSE_TIMEOUT_SECONDS is not set: that of the
            library that runs the ranks; None: the default.
    """
    return _core.WaitLimits.from_environment(timeout)


def wait_until(
    done: Callable[[], bool],
    check: Callable[[], None],
    what: str | Callable[[], str],
    *,
    timeout: float | None = None,
) -> None:
    """Sleeps until a condition holds; after HVD_SPARSE_STALL_SECONDS, logs what it waits for.

    Args:
        done: Returns true once the condition holds.
        check: Raises the error that has ended the exchange, if any.
        what: The event waited for, as quoted in the warning and in the error; or a function that
            returns it when it is needed.
        timeout: As for `limits_of_waits`.

    Raises:
        ExchangeTimeoutError: The condition did not hold until the deadline.
    """
    if done():
        return
    limits = limits_of_waits(timeout)
    start, warned = time.perf_counter(), limits.warn_seconds == 0

    def text() -> str:
        return what if isinstance(what, str) else what()

    while not done():
        check()
        waited = time.perf_counter() - start
        if 0 < limits.fail_seconds < waited:
            raise ExchangeTimeoutError(limits.timeout_message(text()))
        if not warned and waited > limits.warn_seconds:
            warned = True
            with suppress(Exception):  # from the program's own log handler
                log.logger.warning(
                    "this rank has waited %g s for %s; it goes on waiting",
                    limits.warn_seconds,
                    text(),
                )
        time.sleep(min(max(_POLL_SHARE * waited, _SHORTEST_POLL), _LONGEST_POLL))
