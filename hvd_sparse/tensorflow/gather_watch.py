"""Watches the gather with which a meeting begins, for which the graph waits and not this package.

So a rank that stays away from a meeting is noticed as in any other wait: after a while a warning
tells of it, and in the end the exchange ends on all ranks.
"""

from __future__ import annotations

import threading

from hvd_sparse.errors import ExchangeTimeoutError, HvdSparseError
from hvd_sparse.tensorflow.gradient_exchange import GradientExchange


class _Gather:
    """A gather that the graph waits for; a Pending.

    Args:
        name: Its name in messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended = threading.Event()

    def done(self) -> bool:
        return self.ended.is_set()

    def result(self) -> None:
        """Returns nothing: the graph has the result."""


class GatherWatch:
    """Watches one gather after another."""

    def __init__(self) -> None:
        self._gather = _Gather("")

    def begin(self, exchange: GradientExchange) -> None:
        """Watches the gather that begins now, on a thread of its own."""
        self.end()  # of one that has failed
        gather = self._gather = _Gather(f"{exchange.prefix}.local_steps")

        def watch() -> None:
            try:
                exchange.messages.wait_for(gather)
            except ExchangeTimeoutError as error:
                exchange.fail(str(error))
            except HvdSparseError:  # the exchange has ended, and its operations raise why
                pass

        threading.Thread(target=watch, daemon=True, name="hvd_sparse meeting").start()

    def end(self) -> None:
        """Ends the watch: the gather has ended."""
        self._gather.ended.set()
