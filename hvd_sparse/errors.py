"""The errors that users may meet; all of them are `HvdSparseError`s."""

from __future__ import annotations

from typing import TYPE_CHECKING


class HvdSparseError(RuntimeError):
    """Base of everything that this package raises."""

    if not TYPE_CHECKING:
        # AutoGraph asks for this; without it, it raises an error of its own in place of ours.
        __init__ = Exception.__init__


class InvalidArgumentError(HvdSparseError, ValueError):
    """An argument lies outside its limits; nothing was sent."""


class UnsupportedError(HvdSparseError, NotImplementedError):
    """The request cannot be met by a sparse exchange; nothing was sent."""


class UnavailableError(HvdSparseError):
    """This build, or the way in which this job was started, lacks something that is needed."""


class ExchangeFailedError(HvdSparseError):
    """A rank ended the exchange, for all ranks.

    Horovod's elastic training treats it like errors of Horovod's own operations, and starts again:
    under Horovod it is a HorovodInternalError.
    """


class PeerLostError(ExchangeFailedError):
    """Another rank died, or could not be reached, while this one needed it."""


class PeerLeftError(PeerLostError):
    """Another rank lives, but left the exchange or shut Horovod down while it was needed."""


class ExchangeTimeoutError(ExchangeFailedError):
    """A rank lives but has not answered another until the deadline."""


class RanksDisagreeError(ExchangeFailedError):
    """The ranks were not about to exchange the same operation."""


class OutOfMemoryError(ExchangeFailedError, MemoryError):
    """A rank ran out of memory for its part of the exchange; the residuals lost nothing."""


class NonFiniteGradientError(HvdSparseError, ArithmeticError):
    """A gradient held NaN or Inf on some rank, or overflowed float32: no rank applies this step."""


class GradientInFlightError(HvdSparseError, AssertionError):
    """A gradient changed while it was being exchanged."""


class CheckpointMismatchError(HvdSparseError, ValueError):
    """A checkpoint is damaged, or belongs to another model, rank or number of ranks."""


def fail_like(error: type[Exception]) -> None:
    """Makes ExchangeFailedError a kind of a host's error, which programs of the host catch."""
    if not issubclass(ExchangeFailedError, error):
        ExchangeFailedError.__bases__ += (error,)
