"""A handle on an exchange of the core, which ends by an error or by being closed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from numpy.typing import NDArray

from hvd_sparse import _core
from hvd_sparse.errors import (
    ExchangeFailedError,
    ExchangeTimeoutError,
    HvdSparseError,
    NonFiniteGradientError,
    OutOfMemoryError,
    PeerLeftError,
    PeerLostError,
)
from hvd_sparse.ranks import lifecycle
from hvd_sparse.ranks.world import World
from hvd_sparse.timeline.exchange_timeline import ExchangeTimeline

# Seconds in which the cause becomes known after an operation of Horovod's has failed (more than the
# grace period of a rank that left), and seconds between two looks.
_CAUSE_SECONDS, _LOOK_SECONDS = 3.0, 0.005

# The reason why ranks end an exchange that another one of the same parameters replaces.
SUPERSEDED = "a newer optimizer exchanges these parameters"


def failures() -> list[ExchangeFailedError]:
    """Returns the errors that ended those exchanges of this process that are not closed yet."""
    found = []
    for one in lifecycle.still_open():
        if isinstance(one, CoreHandle) and not one.closed:
            try:
                one.check()
            except ExchangeFailedError as error:
                found.append(error)
    return found


def cause_of(failure: Exception) -> Exception:
    """Returns the loss of a rank that made an operation of the host fail; or `failure` itself.

    Any exchange of this process that is still open may know of the loss; see `CoreHandle.cause`.
    """
    deadline = time.monotonic() + _CAUSE_SECONDS
    while _any_open():
        for error in failures():
            if isinstance(error, PeerLostError):
                return _without_frames(error)
        if time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_SECONDS)
    return failure


def explaining(world: World, failure: type[Exception]) -> World:
    """Returns the ranks with an allgather whose failure is explained by `cause_of`.

    Args:
        world: The ranks, two at least if their allgather is ever called.
        failure: Class of the errors that the allgather raises when a rank is gone.
    """

    def allgather(array: NDArray[Any], name: str) -> NDArray[Any]:
        assert world.allgather is not None
        try:
            return world.allgather(array, name)
        except failure as error:
            raise cause_of(error) from error

    return replace(world, allgather=allgather)


def newly_failed() -> Callable[[], None]:
    """Returns a check that raises the error of an exchange that ends after this call.

    The rank that has ended it, or has died, does not come to what the others wait for; one that has
    replaced it was there already.
    """
    known = {str(error) for error in failures()}

    def check() -> None:
        for error in failures():
            if str(error) not in known and SUPERSEDED not in str(error):
                raise error

    return check


def _any_open() -> bool:
    return any(isinstance(one, CoreHandle) and not one.closed for one in lifecycle.still_open())


class CoreHandle:
    """Owns an exchange of the core, and closes it before MPI ends.

    A forked process, such as a data loader's worker, may garbage-collect a handle that its parent
    has dropped. The exchange and its threads belong to the parent alone, so `fail` and `close` do
    nothing in a forked process.

    Args:
        core: The core's exchange; used by nobody else.
        timeline: The timeline that records events; None unless the user asked for one.

    Attributes:
        timeline: As given.
        before_close: Called once, if not None, before this rank's part ends: a step that was taken
            may still be in flight.
    """

    def __init__(self, core: _core.Exchange, timeline: ExchangeTimeline | None = None) -> None:
        self.timeline = timeline
        self._core: _core.Exchange | None = core
        self._engines: WeakSet[_core.StepEngine] = WeakSet()  # they use the core's exchange
        self.before_close: Callable[[], None] | None = None
        self._process = os.getpid()
        lifecycle.register(self)

    @property
    def closed(self) -> bool:
        """True if this rank's part was closed."""
        return self._core is None

    @property
    def inherited(self) -> bool:
        """True if this process was forked by the one that owns the exchange."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raises ExchangeFailedError if the exchange has ended; cheap enough for waiting loops."""
        with self.acknowledging() as core:
            core.check()

    def end(self) -> HvdSparseError | None:
        """Returns the error that ended the exchange, or None while it goes on."""
        try:
            self.check()
        except HvdSparseError as error:
            return _without_frames(error)
        return None

    def cause(self) -> HvdSparseError | None:
        """Returns the error that ended the exchange, after an operation of Horovod's has failed.

        Horovod fails on all ranks when one is gone, and says neither which nor why. The exchange
        learns both soon after, so this waits a few seconds. Returns None if the exchange goes on.
        """
        deadline = time.monotonic() + _CAUSE_SECONDS
        while True:
            try:
                with self.acknowledging() as core:
                    core.check_at_end()  # a rank that died or failed, at once
                    core.check()  # a rank that left
            except HvdSparseError as error:
                return _without_frames(error)
            if time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_SECONDS)

    def fail(self, reason: str) -> None:
        """Ends the exchange on all ranks: every wait, here and there, raises with `reason`."""
        if self._core is not None and not self.inherited:
            self._core.fail(reason)

    def close(self) -> None:
        """Ends this rank's part; ranks that still wait for it are told that it left."""
        if self._core is None or self.inherited:
            return
        before, self.before_close = self.before_close, None
        if before is not None:
            before()
        try:
            self._core.check_at_end()
        except HvdSparseError as error:
            note_loss(error)  # at most an op has raised it
        for engine in self._engines:
            engine.close()
        self._core = None  # the core warns of a death that was reported to nobody

    def make_engine(
        self,
        op_sizes: Sequence[tuple[int, int]],
        buckets: Sequence[_core.DrivenBucket],
        rules: _core.StepRules,
    ) -> _core.StepEngine:
        """Makes an engine that runs steps of the exchange; it is closed with the exchange."""
        engine = _core.StepEngine(self._open, op_sizes, buckets, rules)
        self._engines.add(engine)
        return engine

    def require_open(self) -> None:
        """Raises HvdSparseError if the exchange is closed."""
        self._open  # noqa: B018

    @property
    def _open(self) -> _core.Exchange:
        if self._core is None:
            raise HvdSparseError("this exchange is closed: its ranks were shut down, build it anew")
        return self._core

    @contextmanager
    def acknowledging(self) -> Iterator[_core.Exchange]:
        """Lends the core for calls; notes a refused step, or the error that ended the exchange."""
        core = self._open
        try:
            yield core
        except NonFiniteGradientError as error:
            if self.timeline is not None:
                self.timeline.refused(str(error))
            raise
        except ExchangeFailedError as error:
            core.acknowledge()
            note_loss(error)
            raise


def _without_frames(error: HvdSparseError) -> HvdSparseError:
    """Drops the traceback: it would keep the caller's frames alive, and these the error."""
    return error.with_traceback(None)


def note_loss(error: HvdSparseError) -> None:
    """Notes for the end of this process that a rank is gone, if the error says so."""
    if isinstance(error, PeerLeftError):
        lifecycle.note_peer_left()
    elif isinstance(error, PeerLostError | ExchangeTimeoutError | OutOfMemoryError):
        # A rank that has timed out exits without finalizing MPI, so the others lose it, too. A rank
        # out of memory may be unable to finalize.
        lifecycle.note_peer_lost()
