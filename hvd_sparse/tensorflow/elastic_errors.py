"""Turns errors of TensorFlow's ops into the errors after which elastic training restarts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from hvd_sparse.exchange.core_handle import failures

# Every message of Horovod's ops contains at least one of these. Op names do not help: in a graph
# they are the user's, or ours.
_HOROVOD_MARKERS = ("Horovod", "hvd_sparse", "gloo/")


def with_horovod_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that ops which fail because ranks are gone raise HorovodInternalError.

    If the op's message is that of a failed exchange, its ExchangeFailedError is raised instead.
    Other errors are unchanged: an error in the script must not restart training for ever. But any
    other UnknownError, such as a tf.py_function's, becomes a RuntimeError: Horovod would silently
    take it for the end of training.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except tf.errors.OpError as error:
            cause = _cause_of(error)
            if cause is None:
                raise
            raise cause from error

    return wrapper


def _cause_of(error: tf.errors.OpError) -> Exception | None:
    for failure in failures():
        if str(failure) in error.message:
            return failure
    if not isinstance(error, tf.errors.UnknownError):
        return None
    internal = any(text in error.message for text in _HOROVOD_MARKERS)
    kind: type[Exception] = HorovodInternalError if internal else RuntimeError
    return kind(error.message)
