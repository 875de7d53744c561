"""Waits that end with the exchange, and at a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

from hvd_sparse import _core
from hvd_sparse.errors import ExchangeTimeoutError

# Between two looks at what is waited for and at the exchange: a part of what was waited already,
# between these limits. A look every 100 us would take a fifth of a core.
_POLL_SHARE = 0.01
_SHORTEST_POLL, _LONGEST_POLL = 1e-4, 2e-3  # seconds


def wait_until(done: Callable[[], bool], check: Callable[[], None], what: str) -> None:
    """Sleeps until something is done.

    Args:
        done: Whether it is.
        check: Raises what has ended the exchange.
        what: Is waited for, as the error shows it.

    Raises:
        ExchangeTimeoutError: It was not done within HVD_SPARSE_TIMEOUT seconds.
    """
    if done():
        return
    limits = _core.WaitLimits.from_environment()
    start = time.perf_counter()
    while not done():
        check()
        waited = time.perf_counter() - start
        if 0 < limits.fail_seconds < waited:
            raise ExchangeTimeoutError(limits.gave_up(what))
        time.sleep(min(max(_POLL_SHARE * waited, _SHORTEST_POLL), _LONGEST_POLL))
