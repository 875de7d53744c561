"""Waits that end with the exchange."""

from __future__ import annotations

import time
from collections.abc import Callable

# Between two looks at what is waited for and at the exchange: a part of what was waited already,
# between these limits. A look every 100 us would take a fifth of a core.
_POLL_SHARE = 0.01
_SHORTEST_POLL, _LONGEST_POLL = 1e-4, 2e-3  # seconds


def wait_until(done: Callable[[], bool], check: Callable[[], None]) -> None:
    """Sleeps until something is done, or `check` raises what has ended the exchange."""
    start = time.perf_counter()
    while not done():
        check()
        waited = time.perf_counter() - start
        time.sleep(min(max(_POLL_SHARE * waited, _SHORTEST_POLL), _LONGEST_POLL))
